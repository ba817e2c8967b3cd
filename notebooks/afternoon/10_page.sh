# A page to send to somebody: one file that opens offline.
cojax evaluate --fixture arm-n2-p0.80-s7 --fixture arm-n4-p0.80-s7 --policy lqr --policy zero --trials 16 --out shown
cojax report shown --out page.html
