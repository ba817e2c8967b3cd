"""The commands of the command line, by subject. At import they load nothing but click."""
