"""Facts with sources: data sheets of GPUs, shapes of models, links of clusters, prices, engines."""
