"""The prose of the page."""

INTRODUCTION = """\
# The paper, measured

`python -m benchmarks.paper` measures the rows in `benchmarks/results/` and writes this page from them
alone; do not edit the page by hand. Every row has its settings and its seed.

- {quick} marks a quick row (`--quick`): fewer epochs and fewer settings than the full form. It is a rough
  figure.
- "{unfinished}" is a row that failed or was not run. The last section counts them. "impossible" is one
  that cannot be measured; the text says why.
- The metric is test ROC-AUC for two classes and test accuracy for more, in percent. One seed (0). ± is
  the standard deviation over splits.
- Epochs and settings are chosen on validation labels. No choice uses test labels.
- {rows} rows, measured on {machines}, one thread, next to other work. Each row has the git revision of its
  code ([results/README.md](results/README.md)).
- The paper's figures come from ten splits on a GPU. All models here have 64 columns (AdaR's zero-shot
  model: 128).
"""

BRIEF = {  # claims, as the summary names them
    "AdaR has the best result of all models": "AdaR is the best model",
    "removing the step information costs accuracy, more than any other part": "step information matters most",
    "a fixed unit time step gets worse with more steps than in training": "more unit time steps are worse",
    "removing the relations costs accuracy": "relations matter",
    "removing L_full costs accuracy, more than removing L_step": "L_full matters, more than L_step",
    "removing L_step costs accuracy": "L_step matters",
    "without L_step, the metric has more local maxima along the trajectory": "L_step removes local maxima",
    "the peak of the mean inner product is close to the best step": "the peak is close to the best step",
}
EARLIER_LIMIT = 0.5  # of the claims on parts of the model, in points

CLAIMS = """\
## Which claims hold here

All verdicts and this summary are computed from the rows.
"""

LIMITS = """\
A part of the model or of the loss "costs accuracy" if its removal loses more than one point, about one
standard error; smaller differences are chance. {quick} beside a verdict: a row behind it is quick, a short
training, so the verdict is preliminary. The limit was half a point at first and was raised after quick rows
of acm were seen, because its 605 test nodes have a standard error of 1.1 points. With half a point,
{changed}.
"""

TRANSDUCTIVE = """\
## Tab. transductive

Mean over splits 0 to 2. All baselines have the same {settings} settings ({quick_settings} in the quick
form): shallow with strong regularisation, deep, and deep with a lower learning rate. The best setting on
the validation labels of split 0 is used on all splits. A baseline trains for at most {epochs} epochs with
patience {patience} (quick form: {quick_epochs} and {quick_patience}). GraphGPS has linear attention and no
positional encodings. H2GCN is impossible on tolokers: it needs all two-hop neighbours, and there are too
many. "paper" is the paper's figure for the model on the left.
Some rows of baselines have products in bfloat16 ([results/README.md](results/README.md)).
AdaR's preset trains for 100 epochs at a learning rate of 0.003 in its quick form. AdaR's default has no quick
form: beside a quick baseline, it trained for longer. Its products are in bfloat16, as graphs of this size
have by default.
[accuracy.md](accuracy.md) has AdaR's own figures from its commands. The rows of amazon-computers were trained
before the default had 400 epochs and a final of its search; with both, the mean of the three splits is 93.21.
"""

STEP = """\
## Fig. step: test-time computing without a part

AdaR with the paper's settings (`--preset transductive`, trained with 8 steps), split 0; test metric at
the end of each budget. The paper measures this on zero-shot transfer; here the graph has labels. Quick
form: 100 epochs at a learning rate of 0.003 instead of 1,000 at 0.001. Compare rows of the same form: the
picture of a set has quick rows alone until all of its rows are there in full.
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
once, with 8 steps (`--preset quick`). The learning rates 0.01 and 0.003 are the same search for every model:
the test metric is that of the better one on validation. "alone" marks a rate whose other one is not finished;
such a line takes no part in the claim. So few epochs favour models that learn fast: Tab. transductive has
longer trainings. Each row is one process with one thread. Times are CPU times, memory is the increase of the
process's peak, both of the newest row, as they do not depend on the learning rate.
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
One seed decides little here: the same command with seeds 0 to 2 has 68.02, 69.68 and 69.31 at 300 steps in
[accuracy.md](accuracy.md), from an earlier revision.
"""

MORE = """\
## Baselines on more graphs

Mean over splits 0 to 2; reddit-threads has one split. Logistic regression uses the features alone, with
the penalty chosen on validation. GCN default: 4 layers, dropout 0.2. GCN shallow: 2 layers, dropout 0.5,
weight decay 5e-4. Both train for 200 epochs.
"""

UNFINISHED = """\
## Full and quick rows

`python -m benchmarks.paper --list` names the rows that are not there in full; the same command without
`--list` measures them. The quick form has fewer settings per search: "rows of the full form alone" are those
that it leaves out.
"""
