"""Facts with sources: data sheets of GPUs, sizes of models, links of clusters, prices, engines."""
