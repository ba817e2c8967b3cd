# The paper's Table I, made again. At the smoke scale it shows that all runs, and nothing else:
# --scale small takes 20 minutes, --scale paper is the paper's.
cojax run nvdex --scale smoke --out nvdex
# nvdex/tables/table_1_gap.tex fits one column, table_1_compact.tex both, table_1_paper.tex stands
# beside the published numbers; table_1.csv has every column, and nvdex/figures/*.pdf the figures.
