"""The prose of the page."""

INTRODUCTION = """\
# The paper, measured

`python -m benchmarks.paper` measures the rows in `benchmarks/results/` and writes this page from them
alone; do not edit the page by hand. Every row has its settings, its seed and the git revision of the
code.

- {quick} marks a quick row (`--quick`): fewer epochs and fewer settings than the full form. It is a rough
  figure.
- "{unfinished}" is a row that failed or was not run. The last section counts them.
- The metric is test ROC-AUC for two classes and test accuracy for more, in percent. One seed (0). ± is
  the standard deviation over splits.
- Epochs and settings are chosen on validation labels. No choice uses test labels.
- {rows} rows of the revisions {revisions}; {machines}, one thread, next to other work.
- The paper's figures come from ten splits on a GPU. All models here have 64 columns (AdaR's zero-shot
  model: 128).
"""

CLAIMS = """\
## Which claims hold here

The verdicts are computed from the rows. A part of the model or of the loss "costs accuracy" if its
removal loses more than one point, about one standard error; smaller differences are chance. Quick rows
are short trainings, so a verdict from them is preliminary. The limit was half a point at first and was
raised after the rows of acm were seen, because its 605 test nodes have a standard error of 1.1 points. With
half a point, "removing the relations costs accuracy (acm)" would hold; no other verdict would change.
"""

TRANSDUCTIVE = """\
## Tab. transductive

Mean over splits 0 to 2. All baselines have the same {settings} settings ({quick_settings} in the quick
form): shallow with strong regularisation, deep, and deep with a lower learning rate. The best setting on
the validation labels of split 0 is used on all splits. A baseline trains for at most {epochs} epochs with
patience {patience} (quick form: {quick_epochs} and {quick_patience}). H2GCN needs all two-hop neighbours,
and tolokers has too many. GraphGPS has linear attention and no positional encodings. "paper" is the
paper's figure for the model on the left.
AdaR's preset trains for 100 epochs at a learning rate of 0.003 in its quick form. AdaR's default has no quick
form; its products are in bfloat16, as graphs of this size have by default.
[accuracy.md](accuracy.md) has AdaR's own figures from its commands, also where a row is missing here: the
mean of three splits of tolokers is 85.36. The rows of amazon-computers were trained before the default had
400 epochs and a final of its search; with both, the mean of the three splits is 93.21.
"""

STEP = """\
## Fig. step: test-time computing without a part

AdaR with the paper's settings (`--preset transductive`, trained with 8 steps), split 0; test metric at
the end of each budget. The paper measures this on zero-shot transfer; here the graph has labels. Quick
form: 100 epochs at a learning rate of 0.003 instead of 1,000 at 0.001.
"""

EXIT = """\
## Fig. exit: the mean inner product along the trajectory

Budget 300, split 0. This figure uses AdaR's rows of the other parts.
"""

EXIT_RULES = """\
The exit that `train` chose, and the validation points that each rule loses against the best step, mean over
the calibrated budgets. The peak is that of the alignment that the run watches.
"""

COMPUTE = """\
## Fig. accuracy against compute, and Tab. cost

minesweeper, split 0, {epochs} epochs for every model ({quick_epochs} in the quick form). AdaR trains
once, with 8 steps (`--preset quick`). Learning rates are fixed, without a search: 0.01 for
AdaR, 0.003 for GCNII and N². So compare the costs here, and the accuracies in Tab. transductive, where N²
has a search and more epochs. Each row is one process with one thread. Times are CPU times;
memory is the increase of the process's peak.
"""

THEORY = """\
## Theory: order of convergence

A small AdaR learns the velocity of a known trajectory, which goes out and back on one line. Then the
model follows the trajectory with S steps. The order is fitted from 4 to 64 steps: with more steps, the
error of the learned velocity is larger than the error of the steps. Quick form: 250 updates instead of 600.
"""

ZERO_SHOT = """\
## Tab. zero-shot: arXiv and DBLP to Cora

Trained on {trained_on}, accuracy on all nodes of cora-text. AdaR and the supervised baselines score a
node by its inner products with the encoded class descriptions. DGI and GRACE encode descriptions as nodes
without neighbours and use the cosine. The paper trains on four other graphs with other text features:
compare the order of its column, not its values. AdaR's settings: `ours` is the default of `adar-deploy
train`, `zero-shot` is the paper's preset (quick form: 40 epochs at a learning rate of 0.001 instead of
10,000 at 0.0001). `pretrained` is the model inside the package, which was trained on other graphs
([pretrained.md](pretrained.md)); the verdict above leaves it out. Its row is of an earlier version;
pretrained.md has the current one.
[accuracy.md](accuracy.md) has AdaR's own figures from its commands, also where a row is missing here.
"""

MORE = """\
## Baselines on more graphs

Mean over splits 0 to 2; reddit-threads has one split. Logistic regression uses the features alone, with
the penalty chosen on validation. GCN default: 4 layers, dropout 0.2. GCN shallow: 2 layers, dropout 0.5,
weight decay 5e-4. Both train for 200 epochs.
"""

UNFINISHED = """\
## What is not finished

`python -m benchmarks.paper --list` names these rows; the same command without `--list` measures them.
"""
