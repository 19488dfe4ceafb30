// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/read.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/members.hpp"
#include "accelerate/checkpoint/dcp_tensors.hpp"
#include "accelerate/checkpoint/file_names.hpp"
#include "accelerate/checkpoint/fsdp_files.hpp"
#include "accelerate/checkpoint/python_state.hpp"
#include "accelerate/checkpoint/saved_ranges.hpp"
#include "accelerate/checkpoint/weights.hpp"

namespace accelerate::checkpoint {

using archive::Members;

using archive::Manifest;

namespace {

namespace fs = std::filesystem;

bool part_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

constexpr size_t kMaxPerKind = 10'000;  // models, loaders, ...: a larger index in a manifest is invalid

// "3.exp_avg" is the state "exp_avg" of parameter 3.
std::optional<std::pair<int64_t, std::string>> parameter_in(std::string_view name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const auto digits = static_cast<size_t>(end - name.data());
  if (error != std::errc() || digits + 1 >= name.size() || name[digits] != '.') return std::nullopt;
  return std::pair(number, std::string(name.substr(digits + 1)));
}

void put(NamedTensors& tensors, const std::string& name, at::Tensor tensor) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) { return one.first == name; });
  if (found != tensors.end()) {
    found->second = std::move(tensor);
  } else {
    tensors.emplace_back(name, std::move(tensor));
  }
}

class Reader {
 public:
  Reader(fs::path folder, int64_t rank, c10::DeviceType accelerator, std::string_view operation)
      : folder_(std::move(folder)), rank_(rank), accelerator_(accelerator), operation_(operation) {}

  CheckpointReader run() {
    if (part_exists(folder_ / archive::kManifestName)) read_.manifest = archive::manifest_of(folder_, operation_);
    if (read_.manifest) {
      written_by_accelerate_cpp();
    } else {
      written_by_hf_accelerate();
    }
    own_part();
    return std::move(read_);
  }

 private:
  CheckpointContent& content() { return read_.content; }
  [[nodiscard]] TorchFile open(std::string_view name) const { return {folder_ / name, operation_}; }

  void written_by_accelerate_cpp() {
    const Manifest& manifest = *read_.manifest;
    content().step = manifest.step;
    content().epoch = manifest.epoch;
    const auto owner = std::make_shared<SavedRanges>(folder_, manifest, operation_);
    SavedRanges& ranges = *owner;
    read_.elements = [owner](const at::Tensor& placeholder, int64_t begin, int64_t end) {
      return owner->read(placeholder, begin, end);
    };
    for (const auto& part : manifest.parts) {
      if (part.kind == "model") {
        entry_at(content().models, part) = tensors_in(ranges, fmt::format("model.{}/", part.index));
      } else if (part.kind == "master_weights") {
        content().masters = tensors_in(ranges, "masters/");
      } else if (part.kind == "optimizer") {
        entry_at(content().optimizers, part) = optimizer(ranges, part.index);
      } else if (part.kind == "scheduler") {
        entry_at(content().schedulers, part) = scheduler_from(open(scheduler_file(part.index)));
      } else if (part.kind == "loader") {
        entry_at(content().loaders, part) = loader_from(open(loader_file(part.index)));
      } else if (part.kind == "loader_generator") {
        entry_at(content().loader_generators, part) = loader_generator(loader_generator_file(part.index));
      } else if (part.kind == "scaler") {
        content().scaler = scaler_from(open(kScalerFile));
      } else if (part.kind == "custom") {
        entry_at(content().customs, part) = custom(ranges, part.index);
      }
    }
  }

  static NamedTensors tensors_in(SavedRanges& ranges, const std::string& prefix) {
    NamedTensors tensors;
    for (const auto& name : ranges.names(prefix)) tensors.emplace_back(name.substr(prefix.size()), ranges.tensor(name));
    return tensors;
  }

  // Reads groups and options from the file, and tensors by the manifest's ranges.
  [[nodiscard]] state::OptimizerState optimizer(SavedRanges& ranges, int64_t index) const {
    auto saved = optimizer_from(open(optimizer_file(index)));
    const std::string prefix = fmt::format("optimizer.{}/", index);
    for (const auto& name : ranges.names(prefix)) {
      const auto of = parameter_in(std::string_view(name).substr(prefix.size()));
      if (!of) {
        base::fail(ErrorKind::data, {}, operation_, "{}: the manifest has {}, expected a parameter's number and a name",
                   folder_.string(), archive::quote_for_terminal(name));
      }
      put(saved.tensors[of->first], of->second, ranges.tensor(name));
    }
    return saved;
  }

  // Adds the tensors of which ranks saved their elements in files of their own. What the object's file contains decides
  // over the manifest, because Python may have written it again.
  [[nodiscard]] CustomState custom(SavedRanges& ranges, int64_t index) const {
    const std::string file = custom_file(index), prefix = fmt::format("custom.{}/", index);
    CustomState saved = custom(file);
    auto* tensors = std::get_if<NamedTensors>(&saved);
    if (tensors == nullptr) return saved;
    std::unordered_set<std::string_view> added;
    for (const archive::ManifestRange& range : read_.manifest->ranges) {
      if (range.file == file || !range.tensor.starts_with(prefix) || !added.insert(range.tensor).second) continue;
      tensors->emplace_back(range.tensor.substr(prefix.size()), ranges.tensor(range.tensor));
    }
    return saved;
  }

  [[nodiscard]] LoaderGenerator loader_generator(const std::string& name) const {
    const TorchFile file = open(name);
    const Members members(file.root(), "the generator of a loader", file.origin());
    LoaderGenerator generator{.pass = members.integer("pass")};
    if (members.has("state")) generator.state = file.tensor(members.value("state"), "state");
    return generator;
  }

  template <typename State>
  State& entry_at(std::vector<State>& list, const archive::ManifestPart& part) const {
    const auto index = static_cast<size_t>(part.index);
    if (index >= kMaxPerKind) throw_index_error(part);
    list.resize(std::max(list.size(), index + 1));
    return list[index];
  }
  [[noreturn]] void throw_index_error(const archive::ManifestPart& part) const {
    base::fail(ErrorKind::data, {}, operation_, "{}: the manifest has a {} of index {}", folder_.string(), part.kind,
               part.index);
  }

  void written_by_hf_accelerate() {
    const auto owner = std::make_shared<DcpTensors>();
    DcpTensors& dcp = *owner;
    read_.elements = [owner](const at::Tensor& placeholder, int64_t begin, int64_t end) {
      return owner->read(placeholder, begin, end);
    };
    for (int64_t i = 0;; ++i) {
      if (part_exists(folder_ / model_file(i))) {
        content().models.push_back(read_weights(folder_ / model_file(i), operation_));
      } else if (part_exists(folder_ / model_bin_file(i))) {
        content().models.push_back(read_weights(folder_ / model_bin_file(i), operation_));
      } else if (has_fsdp_model(folder_, i)) {
        content().models.push_back(read_fsdp_model(folder_, i, operation_, dcp));
      } else {
        break;
      }
    }
    for (int64_t i = 0; part_exists(folder_ / scheduler_file(i)); ++i) {
      content().schedulers.emplace_back(scheduler_from(open(scheduler_file(i))));
    }
    for (int64_t i = 0;; ++i) {
      if (part_exists(folder_ / optimizer_file(i))) {
        content().optimizers.push_back(optimizer_from(open(optimizer_file(i))));
      } else if (has_fsdp_optimizer(folder_, i)) {
        content().optimizers.push_back(read_fsdp_optimizer(folder_, i, operation_, dcp));
      } else {
        break;
      }
    }
    step_of_optimizer();
    if (part_exists(folder_ / kScalerFile)) content().scaler = scaler_from(open(kScalerFile));
    for (int64_t i = 0; part_exists(folder_ / custom_file(i)); ++i) content().customs.push_back(custom(custom_file(i)));
  }

  // Accelerate saves no count of optimizer steps. Adam and similar optimizers count for each parameter; SGD does not
  // count. A schedule's count is no substitute: schedules may advance once per epoch or once per process.
  void step_of_optimizer() {
    std::optional<int64_t> steps;
    if (!content().optimizers.empty()) {
      for (const auto& [number, tensors] : content().optimizers.front().tensors) {
        for (const auto& [name, tensor] : tensors) {
          if (name == "step") steps = std::max(steps.value_or(0), count_in(tensor, number));
        }
      }
    }
    read_.knows_step = steps.has_value();
    content().step = steps.value_or(0);
  }
  [[nodiscard]] int64_t count_in(const at::Tensor& tensor, int64_t parameter) const {
    constexpr double most = 1LL << 53;  // a double has all integers up to here
    const bool is_number = tensor.numel() == 1 && !tensor.is_complex();
    const double count = is_number ? tensor.item<double>() : -1;
    if (count >= 0 && count <= most) return static_cast<int64_t>(count);
    base::fail(ErrorKind::data, {}, operation_, "{}: 'step' of the state of parameter {} is {}, expected one count",
               (folder_ / optimizer_file(0)).string(), parameter,
               is_number ? fmt::format("{}", count) : shape_of(tensor));
  }

  CustomState custom(const std::string& name) const {
    const TorchFile file = open(name);
    if (auto bytes = archive::bytes_in(file.root())) return *bytes;
    if (const auto* text = file.root().as<std::string>()) return *text;
    return file.all_as_tensors(/*logs_skipped=*/rank_ == 0);
  }

  // Returns the first rank with states in this folder. If each machine has its own folder, it has only its own ranks.
  [[nodiscard]] int64_t first_rank() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    if (!read_.manifest) return 0;
    for (const auto& part : read_.manifest->parts) {
      if (part.kind == "random_states") first = std::min(first, part.index);
    }
    return first;
  }

  void own_part() {
    read_.has_own_part = part_exists(folder_ / random_file(rank_));
    const int64_t of = read_.has_own_part ? rank_ : first_rank();
    read_.has_random_states = part_exists(folder_ / random_file(of));
    if (read_.has_random_states) {
      content().random = random_states_from(open(random_file(of)), accelerator_);
      content().accumulated = content().random.step;
      content().local_buffers = content().random.local_buffers;
    }
    if (part_exists(folder_ / window_file(of))) content().window = window(window_file(of));
    if (part_exists(folder_ / buffers_file(rank_))) content().buffers = open(buffers_file(rank_)).tensors();
    if (part_exists(folder_ / comm_hooks_file(of))) content().comm_hooks = open(comm_hooks_file(of)).tensors();
  }

  OpenWindow window(const std::string& name) const {
    const TorchFile file = open(name);
    const Members members(file.root(), "the open window", file.origin());
    OpenWindow window{.micro_batches = members.integer("micro_batches"),
                      .of = members.has("of") ? members.integer("of") : 0,
                      .loss_unit = members.integer("loss_unit"),
                      .count = members.integer("count"),
                      .undivided = members.integer("undivided")};
    const auto* gradients = archive::entries_of(members.value("gradients"));
    if (gradients == nullptr) members.wrong("gradients", members.value("gradients"), "a dict");
    for (const auto& [key, value] : *gradients) {
      const auto* name_of = key.as<std::string>();
      if (name_of == nullptr) members.wrong("gradients", key, "names");
      window.gradients.emplace_back(*name_of, file.tensor(value, *name_of));
    }
    return window;
  }

  fs::path folder_;
  int64_t rank_;
  c10::DeviceType accelerator_;
  std::string operation_;
  CheckpointReader read_;
};

}  // namespace

CheckpointReader read_checkpoint(const fs::path& folder, int64_t rank, c10::DeviceType accelerator,
                                 std::string_view operation) {
  return Reader(folder, rank, accelerator, operation).run();
}

}  // namespace accelerate::checkpoint
