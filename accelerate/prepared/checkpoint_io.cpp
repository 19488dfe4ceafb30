// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/checkpoint_io.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <sstream>
#include <system_error>
#include <tuple>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/base/exception_text.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/collective_error.hpp"
#include "accelerate/checkpoint/file_names.hpp"
#include "accelerate/checkpoint/fsdp_files.hpp"
#include "accelerate/checkpoint/read.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/pipeline_state.hpp"
#include "accelerate/prepared/sharded_customs.hpp"
#include "accelerate/prepared/sharding_support.hpp"
#include "accelerate/prepared/split_parameters.hpp"
#include "accelerate/prepared/split_state.hpp"
#include "accelerate/prepared/stage_names.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

namespace fs = std::filesystem;

// Runs a function on every rank. A failure on any rank is an exception on all of them.
void together(const comm::Group& group, std::string_view operation, const std::function<void()>& run) {
  checkpoint::rethrow_on_all_ranks(group, base::capture_exception(run), operation);
}

// The same if the mesh has stages; without them `run` needs no other rank.
void together_on_stages(const AcceleratorState& shared, std::string_view operation, const std::function<void()>& run) {
  if (!has_pipeline_stages(shared)) return run();
  together(shared.mesh.world, operation, run);
}

bool has(const fs::path& folder, const fs::path& name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

// The manifest.json of another program, which may be in the same folder, does not count.
bool has_manifest(const fs::path& folder) { return archive::has_own_manifest(folder); }

bool has_model(const fs::path& folder) {
  return has(folder, checkpoint::model_file(0)) || has(folder, checkpoint::model_bin_file(0)) ||
         checkpoint::has_fsdp_model(folder, 0);
}

// A folder of Hugging Face Accelerate has weights but no sign of this library.
bool is_of_accelerate(const fs::path& folder) {
  return !has_manifest(folder) && has_model(folder) && !checkpoint::is_accelerate_cpp_format(folder);
}

// A folder that contains numbered checkpoints may also contain weights from save_model().
bool is_checkpoint(const fs::path& folder) {
  if (has_manifest(folder)) return true;
  return has_model(folder) &&
         (has(folder, checkpoint::random_file(0)) || archive::numbered_checkpoints(folder).empty());
}

void log_not_verified(const fs::path& folder) {
  base::log(base::LogLevel::warning, {},
            "load_state: {} has no {}: it was written by Hugging Face Accelerate and cannot be verified",
            folder.string(), archive::kManifestName);
}

// Checks a folder that the caller named. The error names the newest complete checkpoint, which is not loaded instead.
void check_is_complete(const fs::path& folder, bool verify, const archive::FileShare& share) {
  if (is_of_accelerate(folder)) return log_not_verified(folder);
  const auto wrong = archive::find_damage(folder, verify, share);
  if (!wrong) return;
  std::string remedy;
  try {
    const auto newest = archive::newest_complete_checkpoint(folder.parent_path(), "load_state", verify);
    remedy = fmt::format("; the newest complete checkpoint in the same folder is {}", newest.folder.string());
  } catch (const Error&) {
    remedy = "";
  }
  base::fail(ErrorKind::data, {}, "load_state", "{} is incomplete or damaged: {}{}", folder.string(), *wrong, remedy);
}

// Runs a collective that exchanges information between ranks.
template <typename Collective>
auto describe_peers(const comm::Group& group, std::string_view operation, const Collective& collective) {
  return comm::with_operation_context(operation, "the ranks cannot reach each other", group.place(), collective);
}
std::string broadcast_text(const comm::Group& group, std::string_view operation, const std::string& text) {
  return group.size() == 1 ? text : describe_peers(group, operation, [&] { return group.broadcast_bytes(text); });
}

// Every rank writes its part according to its own options. If they differ, parts of the folder may be missing.
void check_equal_options(const comm::Group& group, const checkpoint::SaveOptions& options) {
  if (group.size() == 1) return;
  std::string mine = fmt::format("async {}, when_writer_busy {}, durable {}, share_work {}", options.async,
                                 options.when_writer_busy == checkpoint::WriterBusyPolicy::wait ? "wait" : "skip",
                                 options.durable, options.share_work);
  if (!options.max_shard_size.empty()) mine += ", max_shard_size " + options.max_shard_size;
  const auto all = describe_peers(group, "save_state", [&] { return group.all_gather_bytes(mine); });
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    base::fail(ErrorKind::usage, group.place(), "save_state",
               "rank 0 saves with {}, rank {} with {}; give the same options on all ranks", all[0], rank, all[rank]);
  }
}

// Returns the damage that the lowest damaged rank found.
std::string find_damage_on_any_rank(const comm::Group& group, const std::string& here) {
  if (group.size() == 1) return here;
  const auto all = describe_peers(group, "load_state", [&] { return group.all_gather_bytes(here); });
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return rank == 0 ? all[rank] : fmt::format("{}, on rank {}'s machine", all[rank], rank);
  }
  return {};
}

// Identifies a save and its step. Saves with the same folder name have different ids. Ranks of one save may have made
// different numbers of steps (join_uneven_inputs), so steps are compared only if there is no id.
std::string mark_of(const archive::Manifest& manifest) {
  return fmt::format("{},{}", manifest.id.empty() ? fmt::to_string(manifest.step) : manifest.id, manifest.step);
}

// Collective. `mark` is empty on a rank that does not read the disk.
// Returns "" if all marks are from one save.
std::string what_differs(const comm::Group& group, const std::string& mark) {
  const auto marks = describe_peers(group, "load_state", [&] { return group.all_gather_bytes(mark); });
  const std::string* first = nullptr;
  for (size_t rank = 0; rank < marks.size(); ++rank) {
    if (marks[rank].empty()) continue;
    if (first == nullptr) first = &marks[rank];
    const auto id = [](const std::string& one) { return one.substr(0, one.find(',')); };
    const auto step = [](const std::string& one) { return one.substr(one.find(',') + 1); };
    if (id(marks[rank]) == id(*first)) continue;
    return fmt::format(
        "not of one save on all machines: on rank {}'s it is of step {}, on rank {}'s another of step {}",
        first - marks.data(), step(*first), rank, step(marks[rank]));
  }
  return {};
}

}  // namespace

Checkpointing::Checkpointing(std::shared_ptr<AcceleratorState> shared, ProjectConfiguration project)
    : accelerator_state_(std::move(shared)), project_(std::move(project)), saver_(accelerator_state_->mesh.world) {}

void Checkpointing::add_custom(CustomObject object) {
  customs_.push_back(with_sharded_parameters(*accelerator_state_, std::move(object)));
}

HookHandle Checkpointing::add(const Hooks& hooks, StateHook hook) {
  const auto place = hooks->insert(hooks->end(), std::move(hook));
  return HookHandle([weak = std::weak_ptr(hooks), place, removed = std::make_shared<bool>(false)] {
    if (std::exchange(*removed, true)) return;  // already removed by another copy of the handle
    if (const auto held = weak.lock()) held->erase(place);
  });
}

// Iterates over a copy, because a hook may remove itself.
void Checkpointing::call(const Hooks& hooks, const fs::path& folder) {
  const std::vector<StateHook> all(hooks->begin(), hooks->end());
  for (const StateHook& hook : all) hook(folder);
}

fs::path Checkpointing::checkpoints_folder(std::string_view operation) const {
  if (project_.project_dir.empty()) {
    base::fail(ErrorKind::usage, accelerator_state_->place, operation,
               "no folder is given and AcceleratorOptions::project.project_dir is empty; give one of them");
  }
  return project_.project_dir / "checkpoints";
}

fs::path Checkpointing::numbered_folder() const {
  const fs::path parent = checkpoints_folder("save_state");
  archive::recover_numbered(parent);
  const auto all = archive::numbered_checkpoints(parent);
  int64_t next = all.empty() ? 0 : std::stoll(all.front().filename().string().substr(11));
  if (next == std::numeric_limits<int64_t>::max()) {
    base::fail(ErrorKind::usage, accelerator_state_->place, "save_state",
               "{} has the highest possible number, so no new one can follow; rename or remove it",
               all.front().string());
  }
  next += all.empty() ? 0 : 1;
  const auto named = [&] { return parent / fmt::format("checkpoint_{}", next); };
  std::error_code error;
  while (fs::exists(fs::symlink_status(named(), error))) ++next;  // skips files and dangling links too
  return named();
}

std::optional<fs::path> Checkpointing::save_state(const fs::path& folder, const checkpoint::SaveOptions& options) {
  refuse_split_models(*accelerator_state_, "save_state");
  together_on_stages(*accelerator_state_, "save_state",
                     [&] { check_stages(*accelerator_state_, "save_state", project_.save_on_each_node); });
  check_equal_options(accelerator_state_->mesh.world, options);
  if (options.share_work) {
    refuse_with_sharding(*accelerator_state_, "save_state with share_work",
                         "each rank writes its parts, and rank 0 everything else");
  }
  if (!saver_.ready(options)) return std::nullopt;
  fs::path place = folder;
  if (place.empty()) {
    std::string named;
    together(accelerator_state_->mesh.world, "save_state", [&] {
      if (accelerator_state_->mesh.world.rank() == 0) named = numbered_folder().string();
    });
    place = broadcast_text(accelerator_state_->mesh.world, "save_state", named);
  } else if (!place.has_filename()) {
    place = place.parent_path();
  }
  std::error_code error;
  if (fs::is_symlink(place, error)) place = fs::weakly_canonical(place, error);  // replaces the target of the link
  checkpoint::CheckpointContent content;
  BuffersWithRank0 buffers;
  const auto failed = base::capture_exception(
      [&] { buffers = buffers_with_rank_0(*accelerator_state_); });  // thrown on all ranks below
  OptimizerStates states;
  ShardedCustoms sharded_objects;
  together(accelerator_state_->mesh.world, "save_state", [&] {
    if (failed) std::rethrow_exception(failed);
    states = sharded_states(*accelerator_state_);
    sharded_objects = sharded_customs(*accelerator_state_, customs_);
  });
  ShardedContent sharded = sharded_content(*accelerator_state_, std::move(states), sharded_objects);
  together(accelerator_state_->mesh.world, "save_state", [&] {
    content = content_of(*accelerator_state_, customs_, buffers, std::move(sharded));
    // Otherwise a rank would fail alone while the others join their tensors.
    if (accelerator_state_->mesh.divides_layers()) check_can_be_saved(content.customs);
    check_can_be_joined(*accelerator_state_, content);
    check_stage_content(*accelerator_state_, content);
  });
  if (accelerator_state_->mesh.tensor.size() > 1) {
    together(accelerator_state_->mesh.world, "save_state",
             [&] { check_equal_in_tensor_group(*accelerator_state_, customs_, content); });
    join_parts(*accelerator_state_, customs_, content, keeps_joined_parts("save_state"));
  }
  together_on_stages(*accelerator_state_, "save_state", [&] {
    convert_to_stage_parts(*accelerator_state_, optimizer_parameter_names(*accelerator_state_, "save_state"), content);
  });
  content.random.python = python_random_;
  content.random.numpy = numpy_random_;
  auto save_options = options;
  // Only writers have the joined tensors, and ranks of other stages have other tensors.
  if (accelerator_state_->mesh.divides_layers()) save_options.share_work = false;
  if (accelerator_state_->local_steps > 0) {
    save_options.share_work = false;  // local SGD: weights differ between ranks
    if (accelerator_state_->mesh.world.size() > 1 && accelerator_state_->mesh.world.rank() == 0) {
      base::log_once(base::LogLevel::warning, accelerator_state_->place,
                     "save_state: within local_sgd() rank 0's weights are saved; save after its finish(), or right "
                     "after a step() that averaged");
    }
  }
  saver_.save(content, {.place = place,
                        .options = save_options,
                        .on_each_node = project_.save_on_each_node,
                        .total_limit = folder.empty() ? project_.total_limit : std::nullopt,
                        .accelerator = accelerator_state_->device.type(),
                        .mesh = accelerator_state_->mesh.text(),
                        .hook = [this](const fs::path& making) { call(save_hooks_, making); }});
  return place;
}

bool Checkpointing::keeps_joined_parts(std::string_view operation) const {
  return has_pipeline_stages(*accelerator_state_) ? is_stage_writer(*accelerator_state_)
                                                  : disk_role(operation).accesses;
}

Checkpointing::DiskRole Checkpointing::disk_role(std::string_view operation) const {
  const comm::Group& group = accelerator_state_->mesh.world;
  const auto rank = static_cast<size_t>(group.rank());
  if (group.size() == 1 || !project_.save_on_each_node) {
    return {.accesses = rank == 0, .verified = {.index = rank, .count = static_cast<size_t>(group.size())}};
  }
  const auto hosts = describe_peers(group, operation, [&] { return group.all_gather_bytes(base::host_name()); });
  const auto before = static_cast<size_t>(std::count(hosts.begin(), hosts.begin() + group.rank(), hosts[rank]));
  const auto count = static_cast<size_t>(std::count(hosts.begin(), hosts.end(), hosts[rank]));
  return {.accesses = before == 0, .verified = {.index = before, .count = count}};
}

std::string Checkpointing::find_damage(const fs::path& folder) const {
  if (!is_of_accelerate(folder)) return archive::find_damage(folder, /*verify=*/false).value_or("");
  try {
    const auto read =
        checkpoint::read_checkpoint(folder, rank_of_own_part(folder), accelerator_state_->device.type(), "load_state");
    return missing_file(*accelerator_state_, customs_.size(), read);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// On another mesh, the ranks of a tensor parallel group would read random states that differ.
int64_t Checkpointing::rank_of_own_part(const fs::path& folder) const {
  constexpr int64_t none = -1;
  const job::MeshGroups& mesh = accelerator_state_->mesh;
  const bool fits = (has_manifest(folder) ? archive::manifest_of(folder, "load_state").mesh : "") == mesh.text();
  return fits ? mesh.world.rank() : none;
}

std::string Checkpointing::find_damage_together(const fs::path& folder, bool verify, const DiskRole& role) const {
  const comm::Group& group = accelerator_state_->mesh.world;
  auto wrong = find_damage_on_any_rank(group, role.accesses ? find_damage(folder) : "");
  if (!wrong.empty() || !verify) return wrong;
  // A rank without the folder finds no damage: check_visible_on_all_ranks() describes that.
  std::string here;
  if (has_manifest(folder)) here = archive::find_damage(folder, verify, role.verified).value_or("");
  return find_damage_on_any_rank(group, here);
}

LoadedState Checkpointing::newest(const fs::path& parent, const LoadOptions& options, const DiskRole& role) const {
  const comm::Group& group = accelerator_state_->mesh.world;
  std::string all;
  together(group, "load_state", [&] {
    if (role.accesses) archive::recover_numbered(parent);
    if (group.rank() != 0) return;
    for (const fs::path& folder : archive::numbered_checkpoints(parent)) all += folder.filename().string() + "\n";
  });
  all = broadcast_text(group, "load_state", all);
  LoadedState chosen;
  std::istringstream names(all);
  for (std::string name; std::getline(names, name);) {
    auto wrong = find_damage_together(parent / name, options.verify, role);
    if (wrong.empty() && project_.save_on_each_node && group.size() > 1) {
      std::string mark;
      together(group, "load_state", [&] {
        if (role.accesses && has_manifest(parent / name))
          mark = mark_of(archive::manifest_of(parent / name, "load_state"));
      });
      wrong = what_differs(group, mark);
    }
    if (wrong.empty()) {
      chosen.path = parent / name;
      break;
    }
    chosen.skipped_checkpoints.push_back(fmt::format("{}: {}", name, wrong));
  }
  if (chosen.path.empty() && options.if_any && chosen.skipped_checkpoints.empty()) return chosen;
  if (chosen.path.empty()) {
    base::fail(ErrorKind::io, accelerator_state_->place, "load_state", "no complete checkpoint found in {} ({})",
               parent.string(),
               chosen.skipped_checkpoints.empty() ? "no folder checkpoint_N"
                                                  : fmt::format("{}", fmt::join(chosen.skipped_checkpoints, "; ")));
  }
  if (group.rank() != 0) return chosen;
  for (const std::string& passed : chosen.skipped_checkpoints) {
    base::log(base::LogLevel::warning, accelerator_state_->place, "load_state: skipped {}", passed);
  }
  if (!has_manifest(chosen.path)) log_not_verified(chosen.path);
  return chosen;
}

LoadedState Checkpointing::choose(const fs::path& folder, const LoadOptions& options) const {
  const DiskRole role = disk_role("load_state");
  fs::path parent = folder;
  bool by_name = false;
  together(accelerator_state_->mesh.world, "load_state", [&] {
    if (folder.empty()) parent = checkpoints_folder("load_state");
    if (!role.accesses || folder.empty()) return;
    const fs::path place = folder.has_filename() ? folder : folder.parent_path();
    archive::recover(place);
    std::error_code error;
    if (!fs::is_directory(place, error) && !options.if_any) {
      base::fail(ErrorKind::io, accelerator_state_->place, "load_state", "{} is not a directory", folder.string());
    }
    by_name = is_checkpoint(place);
    if (by_name) check_is_complete(place, /*verify=*/false, {});
  });
  by_name = broadcast_text(accelerator_state_->mesh.world, "load_state", by_name ? "1" : "0") == "1";
  parent = broadcast_text(accelerator_state_->mesh.world, "load_state", parent.string());
  if (!by_name) return newest(parent, options, role);
  together(accelerator_state_->mesh.world, "load_state", [&] {
    if (options.verify && has_manifest(parent)) check_is_complete(parent, /*verify=*/true, role.verified);
  });
  return {.path = parent};
}

void Checkpointing::check_visible_on_all_ranks(const fs::path& folder) const {
  const comm::Group& group = accelerator_state_->mesh.world;
  const std::string host = broadcast_text(group, "load_state", base::host_name());
  together(group, "load_state", [&] {
    std::error_code error;
    if (fs::is_directory(folder, error)) return;
    base::fail(ErrorKind::io, accelerator_state_->place, "load_state",
               "rank 0 ({}) has {}, this rank ({}) has no such folder in {}; keep checkpoints where all machines see "
               "them, or copy it to each machine and save with save_on_each_node",
               host, folder.string(), base::host_name(), fs::current_path(error).string());
  });
}

// Machines with separate disks may have different checkpoints with the same name.
void Checkpointing::check_one_save(const fs::path& folder, const std::string& mark) const {
  const comm::Group& group = accelerator_state_->mesh.world;
  if (group.size() == 1) return;
  const auto differs = what_differs(group, mark);
  if (differs.empty()) return;
  base::fail(ErrorKind::data, accelerator_state_->place, "load_state", "{} is {}; load one that all machines have",
             folder.string(), differs);
}

LoadedState Checkpointing::load_state(const fs::path& folder, const LoadOptions& options) {
  refuse_split_models(*accelerator_state_, "load_state");
  together_on_stages(*accelerator_state_, "load_state",
                     [&] { check_stages(*accelerator_state_, "load_state", project_.save_on_each_node); });
  saver_.wait();
  LoadedState loaded = choose(folder, options);
  if (loaded.path.empty()) return loaded;
  check_visible_on_all_ranks(loaded.path);
  ValidatedLoad fit;
  std::vector<OptimizerParameterNames> optimizers;
  together_on_stages(*accelerator_state_, "load_state",
                     [&] { optimizers = optimizer_parameter_names(*accelerator_state_, "load_state"); });
  together(accelerator_state_->mesh.world, "load_state", [&] {
    auto read = checkpoint::read_checkpoint(loaded.path, rank_of_own_part(loaded.path),
                                            accelerator_state_->device.type(), "load_state");
    fit = validate_content(*accelerator_state_, customs_, std::move(read), optimizers, options);
    call(load_hooks_, loaded.path);
  });
  check_one_save(loaded.path, fit.read.manifest ? mark_of(*fit.read.manifest) : "");
  PositionRestore places(*accelerator_state_);
  try {
    together(accelerator_state_->mesh.world, "load_state", [&] {
      places.load(fit.read.content);
      load_fallible_state(*accelerator_state_, customs_, fit.read);
    });
  } catch (...) {
    places.undo();
    throw;
  }
  together(accelerator_state_->mesh.world, "load_state", [&] { apply_validated(*accelerator_state_, fit); });
  replace_sharded_values(fully_sharded_models(*accelerator_state_));
  const checkpoint::CheckpointContent& content = fit.read.content;
  python_random_ = content.random.python;
  numpy_random_ = content.random.numpy;
  loaded.step = content.step;
  loaded.step_is_known = fit.read.knows_step;
  if (!loaded.step_is_known && accelerator_state_->mesh.world.rank() == 0) {
    base::log(
        base::LogLevel::warning, accelerator_state_->place,
        "load_state: {} does not contain the number of optimizer steps; LoadedState::step is 0 and counts from here",
        loaded.path.string());
  }
  loaded.epoch = content.epoch;
  loaded.world_size = fit.read.manifest ? fit.read.manifest->world_size : 0;
  return loaded;
}

void Checkpointing::write(const std::function<void()>& write, std::string_view operation) const {
  const bool writes = disk_role(operation).accesses;
  together(accelerator_state_->mesh.world, operation, [&] {
    if (writes) write();
  });
}

void Checkpointing::save_model(const ModelCore& model, const fs::path& folder,
                               const checkpoint::WeightsOptions& options) {
  constexpr std::string_view operation = "save_model";
  refuse_split_model(*accelerator_state_, model, operation);
  check_stage_model(*accelerator_state_, model, operation, project_.save_on_each_node);
  auto weights = weights_of(model);
  if (has_split(model) || has_pipeline_stages(*accelerator_state_)) {
    // On the other ranks of the data parallel group, nothing is left.
    std::ignore = gather_on_rank_0(model, weights, operation);
  }
  if (has_split(model)) PartJoiner(*accelerator_state_, keeps_joined_parts(operation)).join(weights);
  gather_stages(model, weights);
  StreamedWeights streamed(model.sharded_in_forward());
  streamed.replace(weights);
  std::vector<at::Tensor> order;
  together(accelerator_state_->mesh.world, operation,
           [&] { order = checkpoint::placeholders_in_order(weights, options, operation); });
  if (order.empty()) return write([&] { checkpoint::save_weights(folder, weights, options, operation); }, operation);
  StreamedWeights::Write write_values;
  if (accelerator_state_->mesh.world.rank() == 0) {
    write_values = [&](const checkpoint::ProvideValues& provide) {
      checkpoint::save_weights(folder, weights, options, operation, provide);
    };
  }
  checkpoint::rethrow_on_all_ranks(accelerator_state_->mesh.world, streamed.run(order, write_values, operation),
                                   operation);
}

LoadedModel Checkpointing::load_model(const ModelCore& model, const fs::path& path, bool strict) {
  refuse_split_model(*accelerator_state_, model, "load_model");
  LoadedModel loaded;
  together(accelerator_state_->mesh.world, "load_model", [&] {
    loaded =
        load_weights(model, *accelerator_state_, checkpoint::open_weights(path, "load_model"), strict, "load_model");
  });
  replace_sharded_values(model.sharded_in_forward());
  accelerator_state_->watch.release_all();
  return loaded;
}

void Checkpointing::save(const checkpoint::NamedTensors& tensors, const fs::path& path) {
  write([&] { checkpoint::save_file(path, tensors, "save"); }, "save");
}

}  // namespace accelerate::prepared
