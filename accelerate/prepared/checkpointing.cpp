// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/checkpointing.hpp"

#include <nlohmann/json.hpp>
#include <system_error>

#include "accelerate/archive/folder.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/agree.hpp"
#include "accelerate/checkpoint/read.hpp"
#include "accelerate/prepared/content.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {
namespace {

namespace fs = std::filesystem;

// Runs it on this rank; what any of them throws is an exception on all.
void together(const comm::Group& group, std::string_view operation, const std::function<void()>& run) {
  checkpoint::agree(group, checkpoint::attempt(run), operation);
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / archive::manifest_name, error) || fs::exists(folder / "model.safetensors", error) ||
         fs::exists(folder / "pytorch_model.bin", error);
}

// A folder that was asked for by its name: nothing else is taken in its place, but the error says what there is.
void check_whole(const fs::path& folder, bool verify) {
  std::error_code error;
  if (!fs::exists(folder / archive::manifest_name, error)) {
    base::log(base::LogLevel::warning, {},
              "load_state: {} has no {}: it is of Hugging Face Accelerate, and cannot be "
              "verified",
              folder.string(), archive::manifest_name);
    return;
  }
  const auto wrong = archive::what_is_wrong(folder, verify);
  if (!wrong) return;
  std::string remedy;
  try {
    const auto newest = archive::newest_whole(folder.parent_path(), "load_state", verify);
    remedy = fmt::format("; the newest whole one beside it is {}", newest.folder.string());
  } catch (const Error&) {
    remedy = "";
  }
  base::fail(ErrorKind::data, {}, "load_state", "{} is not whole: {}{}", folder.string(), *wrong, remedy);
}

std::string to_text(const LoadedState& state) {
  return nlohmann::json{{"path", state.path.string()}, {"passed_over", state.passed_over}}.dump();
}

LoadedState from_text(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.path = json["path"].get<std::string>(), .passed_over = json["passed_over"].get<std::vector<std::string>>()};
}

}  // namespace

Checkpointing::Checkpointing(std::shared_ptr<Shared> shared, ProjectConfiguration project)
    : shared_(std::move(shared)), project_(std::move(project)), saver_(shared_->group) {}

HookHandle Checkpointing::add(const Hooks& hooks, StateHook hook) {
  const auto place = hooks->insert(hooks->end(), std::move(hook));
  return HookHandle([weak = std::weak_ptr(hooks), place] {
    if (const auto held = weak.lock()) held->erase(place);
  });
}

fs::path Checkpointing::checkpoints_folder(std::string_view operation) const {
  if (project_.project_dir.empty()) {
    base::fail(ErrorKind::usage, shared_->place, operation,
               "no folder is given and AcceleratorOptions::project.project_dir is empty; give one of them");
  }
  return project_.project_dir / "checkpoints";
}

fs::path Checkpointing::numbered_folder() const {
  const fs::path parent = checkpoints_folder("save_state");
  const auto all = archive::numbered_checkpoints(parent);
  const int64_t next = all.empty() ? 0 : std::stoll(all.front().filename().string().substr(11)) + 1;
  return parent / fmt::format("checkpoint_{}", next);
}

std::optional<fs::path> Checkpointing::save_state(const fs::path& folder, const checkpoint::SaveOptions& options) {
  if (!saver_.ready(options)) return std::nullopt;
  fs::path place = folder;
  if (place.empty()) {
    std::string named;
    together(shared_->group, "save_state", [&] {
      if (shared_->group.rank() == 0) named = numbered_folder().string();
    });
    place = shared_->group.size() == 1 ? named : shared_->group.broadcast_bytes(named);
  } else if (!place.has_filename()) {
    place = place.parent_path();
  }
  auto content = content_of(*shared_, customs_);
  content.random.python = python_random_;
  content.random.numpy = numpy_random_;
  saver_.save(content, {.place = place,
                        .options = options,
                        .on_each_node = project_.save_on_each_node,
                        .total_limit = folder.empty() ? project_.total_limit : std::nullopt,
                        .accelerator = shared_->device.type(),
                        .hook = [this](const fs::path& making) {
                          for (const StateHook& hook : *save_hooks_) hook(making);
                        }});
  return place;
}

LoadedState Checkpointing::choose(const fs::path& folder, const LoadOptions& options) const {
  LoadedState chosen;
  std::error_code error;
  together(shared_->group, "load_state", [&] {
    if (shared_->group.rank() != 0) return;
    if (!folder.empty() && !fs::is_directory(folder, error)) {
      base::fail(ErrorKind::io, shared_->place, "load_state", "{} is no folder", folder.string());
    }
    if (!folder.empty() && is_checkpoint(folder)) {
      check_whole(folder, options.verify);
      chosen.path = folder;
      return;
    }
    const fs::path parent = folder.empty() ? checkpoints_folder("load_state") : folder;
    auto newest = archive::newest_whole(parent, "load_state", options.verify);
    for (const std::string& passed : newest.passed_over) {
      base::log(base::LogLevel::warning, shared_->place, "load_state: passed over {}", passed);
    }
    chosen = {.path = newest.folder, .passed_over = std::move(newest.passed_over)};
  });
  return shared_->group.size() == 1 ? chosen : from_text(shared_->group.broadcast_bytes(to_text(chosen)));
}

LoadedState Checkpointing::load_state(const fs::path& folder, const LoadOptions& options) {
  saver_.wait();
  LoadedState loaded = choose(folder, options);
  checkpoint::Read read;
  together(shared_->group, "load_state", [&] {
    read = checkpoint::read(loaded.path, shared_->group.rank(), shared_->device.type(), "load_state");
    check_content(*shared_, customs_, read, options);
    for (const StateHook& hook : *load_hooks_) hook(loaded.path);
  });
  together(shared_->group, "load_state", [&] { apply_content(*shared_, customs_, read); });
  python_random_ = read.content.random.python;
  numpy_random_ = read.content.random.numpy;
  loaded.step = read.content.step;
  loaded.epoch = read.content.epoch;
  loaded.world_size = read.manifest ? read.manifest->world_size : 0;
  return loaded;
}

void Checkpointing::on_main(const std::function<void()>& write, std::string_view operation) const {
  together(shared_->group, operation, [&] {
    if (shared_->group.rank() == 0) write();
  });
}

void Checkpointing::save_model(const ModelCore& model, const fs::path& folder,
                               const checkpoint::WeightsOptions& options) {
  on_main([&] { checkpoint::save_weights(folder, weights_of(model), options, "save_model"); }, "save_model");
}

LoadedModel Checkpointing::load_model(const ModelCore& model, const fs::path& path, bool strict) {
  LoadedModel loaded;
  together(shared_->group, "load_model",
           [&] { loaded = load_weights(model, checkpoint::read_weights(path, "load_model"), strict, "load_model"); });
  return loaded;
}

void Checkpointing::save(const checkpoint::NamedTensors& tensors, const fs::path& path) {
  on_main([&] { checkpoint::save_file(path, tensors, "save"); }, "save");
}

}  // namespace accelerate::prepared
