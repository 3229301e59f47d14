"""What is logged of the judges, on verdicts made by hand."""

from types import SimpleNamespace

from agentworld.rewards import judge_metrics
from agentworld.rewards.judge import Outcome, Verdict, mean_scores
from agentworld.rewards.judge_cache import Judged
from agentworld.rewards.judge_client import Counts
from agentworld.rewards.outcomes import Opinion
from agentworld.rewards.preference import TIE, A, B, Preference
from agentworld.rewards.rubric import RubricScores


def said(*levels: float, dropped: int = 0) -> Outcome:
    """The verdict of one judge for each level, which all five dimensions have."""
    by_judge = {f"j{n}": Opinion(RubricScores(*[level] * 5), ()) for n, level in enumerate(levels)}
    return Outcome(None, Verdict(mean_scores([one.scores for one in by_judge.values()]), "", by_judge, {}, dropped))


def test_judges_agree_within_half_a_point_and_one_alone_agrees_with_nobody() -> None:
    found = judge_metrics.observations([said(3.0, 3.5), said(3.6, 3.0), said(3.0, 4.0, 3.0), said(5.0)])
    assert found["judge/agreement"] == [1, 0, 0]
    assert found["judge/rubric/j0"] == [3.0, 3.6, 3.0, 5.0]


def test_verdicts_on_a_shortened_history_are_counted() -> None:
    assert judge_metrics.observations([said(1.0), said(1.0, dropped=2)])["judge/windowed_share"] == [0, 1]


def test_the_place_that_a_judge_took_is_told_not_the_win() -> None:
    """Of three pairs: A, B, neither. The prediction stood at A, then twice at B."""
    opinions = [
        Opinion(Preference(win, "rival"), ((letter, Judged(choice, "", 0, 0)),))
        for win, letter, choice in ((1.0, "A", A), (1.0, "B", B), (0.5, "B", TIE))
    ]
    found = judge_metrics.observations([Outcome(None, Verdict(one.scores, "", {"j": one})) for one in opinions])
    assert found["judge/first/j"] == [1.0, 0.0, 0.5] and found["judge/win/j"] == [1.0, 1.0, 0.5]


def test_a_watch_tells_what_was_gained_and_how_long_was_waited(monkeypatch) -> None:
    """Of judges and watchers, since it was made; the seconds since the wait began."""
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(judge_metrics, "time", SimpleNamespace(monotonic=lambda: clock.now))
    judge, watcher = (SimpleNamespace(counts=Counts(requests=3, cost=0.5)) for _ in range(2))
    watch = judge_metrics.Watch(SimpleNamespace(judges=[judge], watchers=[watcher]))
    judge.counts.requests, watcher.counts.requests, watcher.counts.cost = 5, 7, 0.75
    assert (watch.totals()["requests"], watch.totals()["cost"]) == (2 + 4, 0.25)
    clock.now = 12.0
    assert watch.seconds == 2.0
    watch.waits()
    clock.now = 13.0
    assert watch.seconds == 1.0
