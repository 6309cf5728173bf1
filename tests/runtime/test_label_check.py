"""Hidden labels choose how strongly the pretrained model moves."""

import numpy as np

from adar_runtime.in_context.label_check import FOLDS, LabelCheck, chosen, folds


def test_each_label_is_hidden_once_and_every_class_keeps_one() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, -1, -1, 0, 0, 0, 0])
    parts = list(folds(labels))
    assert len(parts) == FOLDS
    hidden = np.sum(parts, axis=0)
    np.testing.assert_array_equal(hidden, (labels == 0) | (labels == 1))  # class 2 has one label
    for part in parts:
        assert set(labels[~part]) == {-1, 0, 1, 2}


def test_without_two_labels_of_a_class_nothing_is_hidden() -> None:
    assert not list(folds(np.array([0, 1, -1])))
    assert not list(folds(np.array([-1, -1])))


def scores_of(labels: np.ndarray, share: float, noise: float) -> np.ndarray:
    random = np.random.default_rng(0)
    wanted = np.where(random.random(len(labels)) < share, labels, (labels + 1) % 3)
    return (np.eye(3)[wanted] + noise * random.standard_normal((len(labels), 3))).astype(np.float32)


def test_the_model_moves_unless_hidden_labels_show_harm() -> None:
    labels = np.arange(60) % 3
    good, bad = scores_of(labels, 0.9, 0.1), scores_of(labels, 0.5, 0.1)
    assert chosen({1.0: good, 0.0: bad}, labels).strength == 1
    found = chosen({1.0: bad, 0.0: good}, labels)
    assert found.strength == 0
    assert found.right == found.right_at_start > 45
    slightly = good + np.float32(0.05) * np.eye(3, dtype=np.float32)[labels]  # better by very little
    assert chosen({1.0: slightly, 0.0: good}, labels).strength == 1
    assert chosen({1.0: good, 0.0: slightly}, labels).strength == 0
    assert chosen({1.0: good, 0.0: good}, labels).strength == 1


def test_a_loss_below_one_standard_error_is_no_harm() -> None:
    """Nine labels are predicted worse by the model, and eight better; then twenty, and none."""
    labels = np.arange(60) % 3
    own, other = np.eye(3, dtype=np.float32)[labels], np.eye(3, dtype=np.float32)[(labels + 1) % 3]
    start, moved = own.copy(), own.copy()
    moved[:9], start[9:17] = other[:9], other[9:17]
    assert chosen({1.0: moved, 0.0: start}, labels).strength == 1
    moved[:20], start[9:17] = other[:20], own[9:17]
    assert chosen({1.0: moved, 0.0: start}, labels).strength == 0


def test_the_free_baseline_does_not_move() -> None:
    labels = np.arange(60) % 3
    good, bad = scores_of(labels, 0.9, 0.1), scores_of(labels, 0.5, 0.1)
    found = chosen({1.0: good, 0.0: bad}, labels, is_chance=True)
    assert found.strength == 0
    assert "class means and ridge regression answer" in str(found)


def test_larger_scores_alone_are_no_gain() -> None:
    labels = np.arange(60) % 3
    good, bad = scores_of(labels, 0.9, 0.5), scores_of(labels, 0.6, 0.5)
    assert chosen({1.0: bad, 0.0: np.float32(0.1) * good}, labels).strength == 0


def test_the_text_says_who_predicts() -> None:
    assert str(LabelCheck(0.0, 1200, 96, 96)) == (
        "strength 0: the closed-form start alone predicted 96 of 1,200 hidden labels correctly"
    )
    assert str(LabelCheck(1.0, 120, 98, 96)) == (
        "strength 1: the model predicted 98 of 120 hidden labels correctly, the closed-form start alone 96"
    )
