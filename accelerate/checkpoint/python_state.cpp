// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/python_state.hpp"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "accelerate/archive/members.hpp"

namespace accelerate::checkpoint {

using archive::Members;

using archive::PickleEntries;
using archive::PickleItems;
using archive::PickleValue;

namespace {

PickleValue text(std::string_view value) { return std::string(value); }

PickleValue numbers(const std::vector<double>& values) { return py_list(PickleItems(values.begin(), values.end())); }

PickleValue integers(const std::vector<int64_t>& values) { return py_list(PickleItems(values.begin(), values.end())); }

// Returns a number or the value of a one-element tensor. Python's learning rates may be either.
std::optional<double> one_number(const PickleValue& value, const std::string& path, const TorchFile& file) {
  if (const auto plain = archive::number_in(value)) return plain;
  if (!TorchFile::is_tensor(value)) return std::nullopt;
  const at::Tensor tensor = file.tensor(value, path);
  if (tensor.numel() != 1 || tensor.is_complex()) return std::nullopt;
  return tensor.item<double>();
}

// Optimizers --------------------------------------------------------------------------------------------------------

PickleValue option_to_python(const state::OptionValue& option) {
  struct Convert {
    PickleValue operator()(std::monostate) const { return archive::PickleNone{}; }
    PickleValue operator()(bool flag) const { return flag; }
    PickleValue operator()(int64_t number) const { return number; }
    PickleValue operator()(double number) const { return number; }
    PickleValue operator()(const std::pair<double, double>& pair) const { return py_tuple({pair.first, pair.second}); }
  };
  return std::visit(Convert{}, option);
}

state::OptimizerGroup group_from(const Members& members, const PickleValue& saved, const TorchFile& file,
                                 ParameterPositions& positions, state::OptimizerState& whole) {
  state::OptimizerGroup group;
  group.parameters = positions.add_group(members.items("params"), whole, file.origin());
  for (const auto& [key, value] : *archive::entries_of(saved)) {
    const auto* name = key.as<std::string>();
    if (name == nullptr || *name == "params") continue;
    auto option = option_from(value);
    // A rate may be a tensor.
    if (const auto one = TorchFile::is_tensor(value) ? one_number(value, "an option", file) : std::nullopt)
      option = *one;
    if (option) group.options.emplace_back(*name, *option);
  }
  return group;
}

std::vector<std::pair<std::string, at::Tensor>> tensors_of_parameter(const PickleValue& saved,
                                                                     const std::string& number, const TorchFile& file) {
  const PickleEntries* entries = archive::entries_of(saved);
  if (entries == nullptr)
    file.origin().broken("the state of parameter {} is {}, expected a dict", number, saved.kind());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [key, value] : *entries) {
    const auto* name = key.as<std::string>();
    if (name == nullptr) file.origin().broken("the state of parameter {} has {} as a name", number, key.kind());
    if (value.as<archive::PickleNone>() != nullptr) continue;  // SGD's momentum before the first step
    const auto plain = archive::number_in(value);              // steps were plain numbers before PyTorch 1.12
    if (!plain && !TorchFile::is_tensor(value)) {
      file.origin().broken("'{}' of the state of parameter {} is {}, expected a tensor", *name, number, value.kind());
    }
    tensors.emplace_back(*name, plain ? at::scalar_tensor(*plain, at::kDouble)
                                      : file.tensor(value, fmt::format("state.{}.{}", number, *name)));
  }
  return tensors;
}

}  // namespace

std::optional<state::OptionValue> option_from(const PickleValue& value) {
  if (value.as<archive::PickleNone>() != nullptr) return std::monostate{};
  if (const auto* flag = value.as<bool>()) return *flag;
  if (const auto* integer = value.as<int64_t>()) return *integer;
  if (const auto* number = value.as<double>()) return *number;
  const PickleItems* items = archive::items_in(value);
  if (items == nullptr || items->size() != 2) return std::nullopt;
  const auto first = archive::number_in((*items)[0]), second = archive::number_in((*items)[1]);
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

std::string ParameterPositions::shown(const PickleValue& key) {
  if (const auto* number = key.as<int64_t>()) return fmt::to_string(*number);
  const auto* name = key.as<std::string>();
  return name != nullptr ? archive::quote_for_terminal(*name) : std::string(key.kind());
}

// Not shown(), which truncates long names.
std::string ParameterPositions::key_of(const PickleValue& key) {
  const auto* name = key.as<std::string>();
  return name != nullptr ? "name " + *name : shown(key);
}

std::vector<int64_t> ParameterPositions::add_group(const PickleItems& keys, state::OptimizerState& saved,
                                                   const archive::Origin& origin) {
  std::vector<int64_t> group;
  for (const PickleValue& key : keys) {
    const auto* name = key.as<std::string>();
    const auto next = static_cast<int64_t>(positions_.size());
    // All parameters have names, or all have numbers.
    const bool has_names = !saved.parameter_names.empty();
    if ((name == nullptr && key.as<int64_t>() == nullptr) || (next > 0 && has_names != (name != nullptr))) {
      origin.broken("a parameter group lists {}, expected integers, or names as FSDP writes them", key.kind());
    }
    if (!positions_.emplace(key_of(key), next).second) {
      origin.broken("parameter {} is in the groups twice", shown(key));
    }
    if (name != nullptr) saved.parameter_names.push_back(*name);
    group.push_back(next);
  }
  return group;
}

int64_t ParameterPositions::position_of(const PickleValue& key, const archive::Origin& origin) const {
  const auto found = positions_.find(key_of(key));
  if (found == positions_.end()) {
    origin.broken("there is a state of parameter {}, which no group lists", shown(key));
  }
  return found->second;
}

PickleValue to_python(const state::OptimizerState& saved, TorchFileWriter& writer) {
  PickleEntries parameters;
  for (const auto& [number, tensors] : saved.tensors) {
    PickleEntries entries;
    for (const auto& [name, tensor] : tensors) {
      entries.emplace_back(name, writer.tensor(tensor, fmt::format("{} of parameter {}", name, number)));
    }
    parameters.emplace_back(number, py_dict(std::move(entries)));
  }
  PickleItems groups;
  for (const auto& group : saved.groups) {
    PickleEntries entries;
    for (const auto& [name, option] : group.options) entries.emplace_back(name, option_to_python(option));
    entries.emplace_back(text("params"), integers(group.parameters));
    groups.push_back(py_dict(std::move(entries)));
  }
  PickleEntries whole{{text("state"), py_dict(std::move(parameters))},
                      {text("param_groups"), py_list(std::move(groups))}};
  if (!saved.own.empty()) whole.emplace_back(text("libtorch_archive"), archive::PickleBytes{saved.own});
  return py_dict(std::move(whole));
}

state::OptimizerState optimizer_from(const TorchFile& file) {
  const Members members(file.root(), "the optimizer's state", file.origin());
  state::OptimizerState saved;
  const PickleItems& groups = members.items("param_groups");
  ParameterPositions positions;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Members group(groups[i], fmt::format("param_groups[{}]", i), file.origin());
    saved.groups.push_back(group_from(group, groups[i], file, positions, saved));
  }
  const PickleEntries* parameters = archive::entries_of(members.value("state"));
  if (parameters == nullptr) members.wrong("state", members.value("state"), "a dict");
  for (const auto& [key, value] : *parameters) {
    const int64_t position = positions.position_of(key, file.origin());
    saved.tensors[position] = tensors_of_parameter(value, ParameterPositions::shown(key), file);
  }
  if (const PickleValue* own = archive::find(file.root(), "libtorch_archive")) {
    if (const auto bytes = archive::bytes_in(*own)) saved.own = *bytes;
  }
  return saved;
}

// Schedulers --------------------------------------------------------------------------------------------------------

namespace {

PickleValue value_to_python(const state::PythonSchedule::Value& value) {
  struct Convert {
    PickleValue operator()(bool flag) const { return flag; }
    PickleValue operator()(int64_t number) const { return number; }
    PickleValue operator()(double number) const { return number; }
    PickleValue operator()(const std::string& words) const { return words; }
    PickleValue operator()(const std::vector<int64_t>& list) const { return integers(list); }
  };
  return std::visit(Convert{}, value);
}

PickleEntries entries_to_python(const state::PythonSchedule::Dict& dict) {
  PickleEntries entries;
  for (const auto& [name, value] : dict) entries.emplace_back(name, value_to_python(value));
  return entries;
}

// A composite schedule has no rates of its own, and only SequentialLR has a count. Entries that Python does not update
// are omitted, because Python would save their old values.
PickleEntries schedule_to_python(const state::SchedulerState& saved) {
  const state::PythonSchedule& python = saved.python;
  PickleEntries whole = entries_to_python(python.members);
  whole.emplace_back(text("_last_lr"), numbers(saved.last_lrs));
  if (python.counts) whole.emplace_back(text("last_epoch"), saved.steps);
  if (!python.parts.empty()) {
    PickleItems parts;
    for (const auto& part : python.parts) parts.push_back(py_dict(schedule_to_python(part)));
    whole.emplace_back(text("_schedulers"), py_list(std::move(parts)));
    return whole;
  }
  // Unknown for LibTorch's schedules. Without the entry Python's schedule keeps its own base rates.
  if (!saved.base_lrs.empty()) whole.emplace_back(text("base_lrs"), numbers(saved.base_lrs));
  whole.emplace_back(text("_step_count"), std::max<int64_t>(saved.steps, 0) + 1);
  whole.emplace_back(text("lr_lambdas"), py_list(PickleItems(saved.base_lrs.size())));  // LambdaLR requires them
  if (!python.phases.empty()) {
    PickleItems phases;
    for (const auto& phase : python.phases) phases.push_back(py_dict(entries_to_python(phase)));
    whole.emplace_back(text("_schedule_phases"), py_list(std::move(phases)));
  }
  if (saved.plateau) {
    whole.emplace_back(text("best"), saved.plateau->best);
    whole.emplace_back(text("num_bad_epochs"), saved.plateau->num_bad);
    whole.emplace_back(text("cooldown_counter"), saved.plateau->cooldown);
  }
  if (saved.name == "CyclicLR") whole.emplace_back(text("_scale_fn_custom"), archive::PickleNone{});  // also required
  return whole;
}

}  // namespace

PickleValue to_python(const state::SchedulerState& saved) {
  PickleEntries ours{
      {text("name"), saved.name}, {text("steps"), saved.steps}, {text("momenta"), numbers(saved.momenta)}};
  PickleEntries whole = schedule_to_python(saved);
  whole.emplace_back(text("accelerate"), py_dict(std::move(ours)));
  return py_dict(std::move(whole));
}

namespace {

// PyTorch's ChainedScheduler has no count, but all its schedules have the same. The first may be a ChainedScheduler.
int64_t steps_of(const PickleValue& schedule, std::string where, const TorchFile& file) {
  const Members members(schedule, std::move(where), file.origin());
  if (members.has("last_epoch") || !members.has("_schedulers")) return members.integer("last_epoch");
  const PickleValue& list = members.value("_schedulers");
  const PickleItems* chained = archive::items_in(list);
  if (chained == nullptr || chained->empty()) members.wrong("_schedulers", list, "a list of schedules");
  return steps_of((*chained)[0], "the first schedule's state", file);
}

std::vector<double> rates(const Members& members, const std::string& key, const TorchFile& file) {
  std::vector<double> list;
  for (const PickleValue& item : members.items(key)) {
    const auto rate = one_number(item, key, file);
    if (!rate) members.wrong(key, item, "numbers");
    list.push_back(*rate);
  }
  return list;
}

}  // namespace

state::SchedulerState scheduler_from(const TorchFile& file) {
  constexpr const char* where = "the schedule's state";
  const Members members(file.root(), where, file.origin());
  state::SchedulerState saved{.steps = steps_of(file.root(), where, file),
                              .last_lrs = rates(members, "_last_lr", file)};
  if (members.has("base_lrs")) saved.base_lrs = rates(members, "base_lrs", file);
  if (members.has("num_bad_epochs")) {
    saved.plateau = {.best = members.number("best"),
                     .num_bad = members.integer("num_bad_epochs"),
                     .cooldown = members.integer("cooldown_counter")};
  }
  if (!members.has("accelerate")) return saved;
  const Members ours = members.members("accelerate");
  saved.name = ours.text("name");
  // Python saves unknown entries unchanged, so momenta are outdated if the counts differ.
  if (ours.integer("steps") == saved.steps) saved.momenta = ours.numbers("momenta");
  return saved;
}

// Loss scale --------------------------------------------------------------------------------------------------------

PickleValue to_python(const precision::ScalerState& saved) {
  return py_dict({{text("scale"), saved.scale},
                  {text("growth_factor"), saved.growth_factor},
                  {text("backoff_factor"), saved.backoff_factor},
                  {text("growth_interval"), saved.growth_interval},
                  {text("_growth_tracker"), saved.growth_tracker}});
}

std::optional<precision::ScalerState> scaler_from(const TorchFile& file) {
  const Members members(file.root(), "the loss scale's state", file.origin());
  if (archive::entries_of(file.root())->empty()) return std::nullopt;
  return precision::ScalerState{.scale = members.number("scale"),
                                .growth_factor = members.number("growth_factor"),
                                .backoff_factor = members.number("backoff_factor"),
                                .growth_interval = members.integer("growth_interval"),
                                .growth_tracker = members.integer("_growth_tracker")};
}

// Loaders -----------------------------------------------------------------------------------------------------------

PickleValue to_python(const state::LoaderState& saved) {
  PickleEntries entries{{text("epoch"), saved.epoch},
                        {text("consumed"), saved.consumed},
                        {text("origin"), saved.origin},
                        {text("samples"), saved.samples},
                        {text("world_size"), saved.world_size},
                        {text("batch_size"), saved.batch_size},
                        {text("split_batches"), saved.split_batches},
                        {text("even_batches"), saved.even_batches},
                        {text("drop_last"), saved.drop_last}};
  if (!saved.order.empty()) entries.emplace_back(text("order"), saved.order);
  if (saved.seed) entries.emplace_back(text("seed"), std::to_string(*saved.seed));  // a 64-bit unsigned integer
  return py_dict(std::move(entries));
}

state::LoaderState loader_from(const TorchFile& file) {
  const Members members(file.root(), "the loader's state", file.origin());
  state::LoaderState saved{.epoch = members.integer("epoch"),
                           .consumed = members.integer("consumed"),
                           .origin = members.integer("origin"),
                           .samples = members.integer("samples"),
                           .world_size = members.integer("world_size"),
                           .batch_size = members.integer("batch_size"),
                           .split_batches = members.boolean("split_batches"),
                           .even_batches = members.boolean("even_batches"),
                           .drop_last = members.boolean("drop_last")};
  if (members.has("order")) saved.order = members.text("order");
  if (!members.has("seed")) return saved;
  const std::string& digits = members.text("seed");
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    members.wrong("seed", members.value("seed"), "a number of 64 bits");
  }
  saved.seed = seed;
  return saved;
}

}  // namespace accelerate::checkpoint
