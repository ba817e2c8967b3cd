# A job is killed, as a queue does it. Its log says how to go on.
cojax train ppo --fixture arm-n2-p0.80-s7 --seeds 1 --timesteps 100000 --points 100 --out job 2> job.log &
until grep -q "steps/s" job.log; do sleep 1; done
kill $!
wait $! || echo "ended with status $?"
$(sed -n 's/^interrupted; go on: //p' job.log)
cojax status job
