# SPDX-License-Identifier: Apache-2.0
"""Compares the schedules with PyTorch and transformers (probe.cpp) for equal arguments: every rate and momentum must agree.

parity.py PROBE RECORDED         compares; PyTorch's are computed, transformers' read from RECORDED
parity.py --record RECORDED      writes RECORDED, where transformers is installed
"""
import itertools
import json
import subprocess
import sys
import warnings

import torch
from torch.optim import lr_scheduler

TOLERANCE = 1e-12
ONE_GROUP, THREE_GROUPS = [0.1], [0.05, 1.0, 3e-4]


def each(**lists):
    """Every combination of the arguments."""
    return [dict(zip(lists, values)) for values in itertools.product(*lists.values())]


def case(schedule, args, steps, **more):
    return {"schedule": schedule, "args": args, "steps": steps, "optimizer": "SGD", "lrs": ONE_GROUP, "default_lr": 0.1, **more}


def in_both_groups(cases):
    return [{**one, "lrs": lrs} for one in cases for lrs in (ONE_GROUP, THREE_GROUPS)]


def part(schedule, **args):
    return {"schedule": schedule, "args": args}


def simple_cases():
    cases = [case("StepLR", args, 65) for args in each(step_size=[1, 2, 7, 30], gamma=[0.0, 0.1, 0.5, 0.95, 1.0])]
    cases += [case("MultiStepLR", args, 90) for args in each(milestones=[[30, 80], [5, 5, 9], [80, 30], [0, 4]], gamma=[0.1, 0.7])]
    cases += [case("ConstantLR", args, 45) for args in each(factor=[1 / 3, 0.5, 1.0], total_iters=[1, 5, 40])]
    cases += [case("LinearLR", args, 45)
              for args in each(start_factor=[1 / 3, 0.01, 1.0], end_factor=[1.0, 0.5, 0.0], total_iters=[1, 5, 40])]
    cases += [case("ExponentialLR", args, 200) for args in each(gamma=[0.0, 0.5, 0.9, 0.999, 1.0, 1.01])]
    cases += [case("PolynomialLR", args, 45) for args in each(total_iters=[1, 5, 40], power=[0.5, 1.0, 2.0, 3.5])]
    cases += [case("CosineAnnealingLR", args, 5 * args["T_max"] // 2 + 2)
              for args in each(T_max=[1, 2, 3, 10, 50, 100], eta_min=[0.0, 1e-4, 0.2])]
    cases += [case("CosineAnnealingWarmRestarts", args, 120)
              for args in each(T_0=[1, 5, 10], T_mult=[1, 2, 3], eta_min=[0.0, 1e-3])]
    cases += [case("LambdaLR", {"factors": name}, 60) for name in ("linear", "power")]
    return in_both_groups(cases) + [case("LambdaLR", {"factors": ["linear", "power", "linear"]}, 60, lrs=THREE_GROUPS)]


def moved_by_hand():
    """Rates depend on the current rates, including those set by other code."""
    parts = [part("StepLR", step_size=5, gamma=0.5), part("LinearLR", start_factor=0.1, end_factor=1.0, total_iters=20),
             part("CosineAnnealingLR", T_max=20, eta_min=1e-3), part("ExponentialLR", gamma=0.9),
             part("PolynomialLR", total_iters=20, power=2.0), part("ConstantLR", factor=0.5, total_iters=12)]
    return in_both_groups([case(one["schedule"], one["args"], 30, set_lr={"7": 0.5, "13": 0.02}) for one in parts])


def cycles():
    common = {"max_lr": [0.5]}
    one_cycle = each(**common, total_steps=[1, 7, 10, 100, 333], pct_start=[0.0, 0.05, 0.3, 0.5, 1.0],
                     anneal_strategy=["cos", "linear"], three_phase=[False, True])
    # A rise of just one step divides by zero there, and is refused here.
    cases = [case("OneCycleLR", args, args["total_steps"] - 1) for args in one_cycle if args["pct_start"] * args["total_steps"] != 1]
    cases += [case("OneCycleLR", args, 49) for args in each(**common, total_steps=[50], div_factor=[10.0], final_div_factor=[100.0],
                                                            base_momentum=[0.7], max_momentum=[0.99], cycle_momentum=[True, False])]
    cases += [case("OneCycleLR", {"max_lr": [0.1, 0.2, 0.3], "total_steps": 20, "max_momentum": [0.9, 0.95, 0.99]}, 19,
                   lrs=THREE_GROUPS)]
    cyclic = each(base_lr=[0.01], max_lr=[0.2], step_size_up=[1, 5, 20], mode=["triangular", "triangular2", "exp_range"], gamma=[0.99])
    cyclic += [{**args, "step_size_down": down} for args in cyclic for down in (3, 0)]
    cyclic += [{"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 6, "scale_fn": True, "scale_mode": mode}
               for mode in ("cycle", "iterations")]
    cases += [case("CyclicLR", args, 130) for args in cyclic]
    cases += [case("CyclicLR", {"base_lr": [0.1, 0.01, 0.02], "max_lr": [0.2, 0.3, 0.1], "step_size_up": 8,
                                "base_momentum": [0.7, 0.8, 0.85], "cycle_momentum": momentum}, 50, lrs=THREE_GROUPS)
              for momentum in (True, False)]
    others = [{**one, "optimizer": kind} for one in cases[::17] for kind in ("Adam", "AdamW", "RMSprop")]
    return cases + others


def combined():
    linear = part("LinearLR", start_factor=0.1, end_factor=1.0, total_iters=5)
    constant = part("ConstantLR", factor=0.5, total_iters=4)
    exponential = part("ExponentialLR", gamma=0.9)
    step = part("StepLR", step_size=3, gamma=0.5)
    multi = part("MultiStepLR", milestones=[4, 11], gamma=0.3)
    cosine = part("CosineAnnealingLR", T_max=12, eta_min=1e-3)
    restarts = part("CosineAnnealingWarmRestarts", T_0=4, T_mult=2, eta_min=0.0)
    polynomial = part("PolynomialLR", total_iters=9, power=2.0)
    function = part("LambdaLR", factors="linear")
    one_cycle = part("OneCycleLR", max_lr=0.5, total_steps=40)
    cyclic = part("CyclicLR", base_lr=0.01, max_lr=0.2, step_size_up=4)
    rows = [([linear, cosine], [5]), ([linear, exponential, step], [5, 12]), ([constant, multi], [4]), ([step], []),
            ([cosine, restarts, polynomial], [6, 20]), ([linear, one_cycle], [5]), ([function, one_cycle], [7]),
            ([one_cycle, exponential], [10]), ([exponential, cyclic], [8]), ([cyclic, exponential], [9]),
            ([polynomial, linear, function], [3, 15]), ([linear, cosine, exponential], [5, 5 + 12])]
    sequences = [part("SequentialLR", schedules=parts, milestones=milestones) for parts, milestones in rows]
    chains = [[constant, exponential], [linear, multi, exponential], [cosine, step], [polynomial, constant], [function, exponential],
              [step], [exponential, function, step], [sequences[0], exponential], [multi, sequences[1]]]
    chains = [part("ChainedScheduler", schedules=parts) for parts in chains]
    sequences += [part("SequentialLR", schedules=[part("ChainedScheduler", schedules=parts), exponential], milestones=[10])
                  for parts in ([one_cycle, step], [cyclic, step], [linear, one_cycle])]
    return in_both_groups([case(one["schedule"], one["args"], 38) for one in sequences + chains])


def plateaus():
    falling_then_flat = [1.0, 0.8, 0.7, 0.7, 0.7, 0.69999, 0.71, 0.9, 0.65, 0.65, 0.66, 0.64, 0.64, 0.64, 0.64, 0.64, 0.6, 0.6, 0.6, 0.6]
    negative = [-value for value in falling_then_flat]
    # Relative thresholds of negative metrics are wrong in PyTorch: reduce_on_plateau_test.cpp has the right values.
    cases = [case("ReduceLROnPlateau", args, 0, metrics=metrics)
             for metrics, threshold_modes in ((falling_then_flat * 2, ["rel", "abs"]), (negative, ["abs"]), ([3.0] * 40, ["rel", "abs"]))
             for args in each(mode=["min", "max"], factor=[0.5, 0.1], patience=[0, 1, 3], threshold=[1e-4, 0.05],
                              threshold_mode=threshold_modes, cooldown=[0, 2])]
    cases += [case("ReduceLROnPlateau", args, 0, metrics=[1.0] * 60) for args in each(patience=[1], min_lr=[0.01, 1e-5], eps=[1e-8, 1e-3])]
    lists = [case("ReduceLROnPlateau", {"patience": 1, "factor": 0.3, "min_lr": [0.01, 0.2, 1e-4]}, 0, metrics=[1.0] * 30,
                  lrs=THREE_GROUPS)]
    return in_both_groups(cases) + lists


def transformers_cases():
    spans = [{"num_warmup_steps": warmup, "num_training_steps": training} for warmup, training in
             [(0, 1), (0, 20), (1, 20), (5, 20), (19, 20), (10, 60)]]
    equal = {"num_warmup_steps": 10, "num_training_steps": 10}
    cases = [("get_constant_schedule", {})]
    cases += [("get_constant_schedule_with_warmup", {"num_warmup_steps": warmup}) for warmup in (0, 1, 10)]
    cases += [("get_linear_schedule_with_warmup", span) for span in spans + [equal]]
    cases += [("get_cosine_schedule_with_warmup", {**span, "num_cycles": cycles}) for span in spans + [equal] for cycles in (0.5, 1.0, 2.25)]
    cases += [("get_cosine_with_hard_restarts_schedule_with_warmup", {**span, "num_cycles": cycles})
              for span in spans + [equal] for cycles in (1, 2, 3)]
    cases += [("get_polynomial_decay_schedule_with_warmup", {**span, "lr_end": end, "power": power})
              for span in spans for end in (1e-7, 0.01) for power in (1.0, 2.0, 0.5)]
    cases += [("get_inverse_sqrt_schedule", args) for args in each(num_warmup_steps=[0, 1, 10])]
    cases += [("get_inverse_sqrt_schedule", args) for args in each(num_warmup_steps=[0, 10], timescale=[1, 10, 500])]
    groups = itertools.cycle([ONE_GROUP, [0.05, 1.0]])
    return [case(name, args, args.get("num_training_steps", 25) + 5, lrs=next(groups)) for name, args in cases]


def optimizer_of(one):
    kind = getattr(torch.optim, one["optimizer"])
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in one["lrs"]]
    more = {"momentum": 0.9} if one["optimizer"] in ("SGD", "RMSprop") else {}
    return kind(groups, lr=one["default_lr"], **more)


FACTORS = {"linear": lambda steps: 1.0 - steps / 50.0, "power": lambda steps: 0.95**steps}


def schedule_of(optimizer, spec):
    name, args = spec["schedule"], dict(spec["args"])
    if name == "LambdaLR":
        names = args["factors"]
        factors = FACTORS[names] if isinstance(names, str) else [FACTORS[one] for one in names]
        return lr_scheduler.LambdaLR(optimizer, factors)
    if name in ("SequentialLR", "ChainedScheduler"):
        parts = [schedule_of(optimizer, one) for one in args["schedules"]]
        return lr_scheduler.SequentialLR(optimizer, parts, args["milestones"]) if name == "SequentialLR" else lr_scheduler.ChainedScheduler(parts)
    if name.startswith("get_"):
        import transformers.optimization

        return getattr(transformers.optimization, name)(optimizer, **args)
    if "scale_fn" in args:
        args["scale_fn"] = lambda x: 1 / (1 + x)
    return getattr(lr_scheduler, name)(optimizer, **args)


def momentum(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


def course_of(one):
    optimizer = optimizer_of(one)
    schedule = schedule_of(optimizer, one)
    metrics = one.get("metrics")
    course = {"lrs": [], "momenta": []}

    def note():
        course["lrs"].append([float(group["lr"]) for group in optimizer.param_groups])
        course["momenta"].append([float(momentum(group)) for group in optimizer.param_groups])

    note()
    for step in range(1, (len(metrics) if metrics else one["steps"]) + 1):
        optimizer.step()
        schedule.step(metrics[step - 1]) if metrics else schedule.step()
        for group in optimizer.param_groups:
            group["lr"] = one.get("set_lr", {}).get(str(step), group["lr"])
        note()
    return course


def worst_difference(ours, theirs):
    worst = 0.0
    for key in theirs:
        assert len(ours[key]) == len(theirs[key]), f"{len(ours[key])} steps of ours, {len(theirs[key])} of theirs"
        for our_groups, their_groups in zip(ours[key], theirs[key]):
            assert len(our_groups) == len(their_groups)
            for our, their in zip(our_groups, their_groups):
                assert our == our, "ours is NaN"
                worst = max(worst, abs(our - their))
    return worst


def main():
    warnings.simplefilter("ignore")
    if sys.argv[1] == "--record":
        import transformers

        cases = transformers_cases()
        recorded = {"made_by": f"parity.py --record, transformers {transformers.__version__}, torch {torch.__version__}",
                    "cases": cases, "lrs": [course_of(one)["lrs"] for one in cases]}
        with open(sys.argv[2], "w") as file:
            json.dump(recorded, file, separators=(",", ":"))
            file.write("\n")
        return
    probe, recorded_file = sys.argv[1:]
    with open(recorded_file) as file:
        recorded = json.load(file)
    assert recorded["cases"] == transformers_cases(), f"{recorded_file} was recorded for other cases: record it again"
    cases = simple_cases() + moved_by_hand() + cycles() + combined() + plateaus()
    theirs = [course_of(one) for one in cases] + [{"lrs": lrs} for lrs in recorded["lrs"]]
    cases += recorded["cases"]
    printed = subprocess.run([probe], input=json.dumps(cases), check=True, timeout=200, stdout=subprocess.PIPE, text=True).stdout
    ours = json.loads(printed)
    assert len(ours) == len(cases), f"{len(ours)} courses of {probe}, {len(cases)} expected"
    failed, worst, values = 0, 0.0, 0
    for one, our, their in zip(cases, ours, theirs):
        difference = worst_difference(our, their)
        worst, values = max(worst, difference), values + sum(len(groups) for course in their.values() for groups in course)
        if difference > TOLERANCE:
            failed += 1
            print(f"{difference:.1e} apart: {one['schedule']} {one['args']} {one['lrs']} {one['optimizer']}")
    print(f"{len(cases)} schedules, {values} values, worst difference {worst:.1e}, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
