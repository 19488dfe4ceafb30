// SPDX-License-Identifier: Apache-2.0
// The loop of the README with a progress bar, TensorBoard and JSON files in logs/digits, and a profile of the
// operators. `accelerate_report logs` converts them to a page.
#include <accelerate/accelerate.hpp>

#include "basic_net.hpp"
#include "command_line.hpp"

namespace {

/// \param logs  Folder for the log files and the profile.
void train(const std::string& logs) {
  accelerate::Accelerator accelerator({.log_with = {"tensorboard", "jsonl", "csv"}, .logging_dir = logs});

  BasicNet net;
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto digits = accelerate::data::mnist("examples/data/mnist", {.batch_size = 64, .shuffle = true});

  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, digits);

  accelerator.init_trackers("digits", {{"lr", 1e-3}, {"batch_size", 64}, {"ranks", accelerator.num_processes()}});
  auto profiler =
      accelerator.profile({.schedule_option = accelerate::ProfileSchedule{.wait = 2, .active = 3, .repeat = 1},
                           .with_flops = true,
                           .output_trace_dir = logs + "/digits/profile"});
  int64_t step = 0;
  auto bar = accelerate::progress(loader, {.description = "epoch 1"});

  for (auto& [images, labels] : bar) {
    optimizer.zero_grad();
    auto loss = torch::nll_loss(model(images), labels);
    accelerator.backward(loss);
    optimizer.step();

    // Undoes the normalisation: values from 0 to 1.
    if (step == 0) accelerator.log_images("digits", images.slice(0, 0, 4) * 0.3081 + 0.1307, step);
    accelerator.log({{"loss", loss},
                     {"lr", optimizer.param_groups()[0].options().get_lr()},
                     {"resident_bytes", accelerator.memory().resident_bytes}},
                    step++);
    bar.set_postfix("loss={:.3f}", loss.item<double>());
    profiler.step();
  }
  profiler.stop();
  accelerator.log_histogram("fc1.weight", net->fc1->weight, step);
  accelerator.log_text("loader", loader.report().text(), step);
  accelerator.end_training();
  accelerator.on_main_process([&] { fmt::print("{}", profiler.table(5)); });
}

}  // namespace

int main(int argc, char** argv) {
  std::string logs = "logs";
  CLI::App app("Trains BasicNet on MNIST with progress bar, log files and profiler");
  app.add_option("FOLDER", logs, "Folder for the log files and the profile")->capture_default_str();
  return command_line::run(app, argc, argv, [&] { train(logs); });
}
