"""The web page at `/`: choose a graph, run a model, watch the alignment and the predictions.

`routes` has its addresses, `samples` the graphs that need no file, `trajectory` what is sent of a run, and
`static_files` the files of the browser: HTML, CSS, JavaScript modules, and the libraries in `static/vendor`.
"""
