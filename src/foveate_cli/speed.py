"""``foveate speed``: measure images per second."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import arguments

DESCRIPTION = """\
Measure images per second of the unreduced model, the reduced model, and the free slice, which cuts tokens off blindly
to the same counts and is the upper limit of speed. The three take turns; ratios are medians of the ratios of each
round."""

EPILOG = """\
examples:
  foveate speed deit_small_patch16_224 --method ToMe --remove 13 --batch-size 1 16 --threads 2
  foveate speed deit_small_patch16_224 --methods EViT TopK --keep-rate 0.7 --seconds 10 --json
  foveate speed deit_small_patch16_224 --method ToMe --budget 0.5 --image-size 224 448 896 --memory --report speed.html
  foveate speed deit_small_patch16_224 --methods Ward ToMe --budget 0.5 --runtime all --precision fp32 int8

columns:
  speed-up    unreduced time / reduced time
  MAC ratio   unreduced MACs / reduced MACs
  realized    speed-up / MAC ratio
  efficiency  reduced img/s / free-slice img/s; 100 % if choosing tokens takes no time

With several sizes or --memory, a second table has nanoseconds per pixel and the peak memory of a pass in MiB, beyond
weights and images.

With --runtime, every method runs in every runtime, each beside its free slice there, all in turns:
  over eager  time of the unreduced model in eager PyTorch (float32) / this time
  over same   time of the unreduced model in the same runtime and precision / this time
  ready in    seconds to load and compile, up to the first output; exporting comes before

keys of --json:
  model, environment {cpu, cores, threads, device, dtype, torch, timm, foveate}, rows. In each row:
  reduction {version, method, schedule, exact_last_block, unit_qk}, batch_size,
  image_size [channels, height, width], rounds, unreduced_per_second, reduced_per_second, free_slice_per_second,
  speed_up, speed_up_quartiles, mac_ratio, realized, efficiency, efficiency_quartiles,
  ns_per_pixel and, with --memory, peak_mib {unreduced, reduced, free slice}.
  With --runtime: reduction, runtime, precision, batch_size, threads, milliseconds, images_per_second, speed_up,
  speed_up_quartiles, speed_up_within, efficiency, efficiency_quartiles, export_seconds, load_seconds, rounds"""

DTYPES = ("float32", "bfloat16")


def add_parser(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "speed", "foveate.cli.speed:run", "measure images per second", DESCRIPTION, EPILOG
    )
    arguments.add_model(parser, several_sizes=True)
    arguments.add_methods(parser)
    arguments.add_schedule(parser)
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--batch-size",
        metavar="N",
        type=arguments.positive_int,
        nargs="+",
        default=[1, 16],
        help="images per batch, one or several; default: 1 16",
    )
    threads = "number of torch threads; default: torch's choice"
    group.add_argument("--threads", metavar="N", type=arguments.positive_int, help=threads)
    timing = "seconds for each method, batch size and image size"
    arguments.add_default(group, "--seconds", 20.0, timing, "S", arguments.positive_float)
    group.add_argument(
        "--rounds", metavar="N", type=arguments.positive_int, help="time each this many times, whatever --seconds says"
    )
    group.add_argument("--memory", action="store_true", help="also measure the peak memory of a pass")
    group.add_argument(
        "--report", metavar="FILE", type=Path, help="write a page that plots time per pixel, and memory, over sizes"
    )
    group.add_argument("--dtype", choices=DTYPES, help="data type of model and images; default: the model's own")
    arguments.add_device(group)
    arguments.add_runtimes(group)
    arguments.add_json(parser)
