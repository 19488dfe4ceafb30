// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/read.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "accelerate/archive/folder.hpp"
#include "accelerate/checkpoint/members.hpp"
#include "accelerate/checkpoint/names.hpp"
#include "accelerate/checkpoint/python_state.hpp"
#include "accelerate/checkpoint/safetensors_file.hpp"
#include "accelerate/checkpoint/weights.hpp"

namespace accelerate::checkpoint {

using archive::Manifest;

namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Tensors of a file by their names, kept for all that are asked of it.
class Files {
 public:
  Files(fs::path folder, std::string_view operation) : folder_(std::move(folder)), operation_(operation) {}

  const NamedTensors& of(const std::string& name) {
    const auto [found, is_new] = files_.try_emplace(name);
    if (is_new) found->second = SafetensorsFile(folder_ / name, operation_).tensors();
    return found->second;
  }
  at::Tensor tensor(const std::string& name, const std::string& key) {
    auto& by_key = keys_[name];
    if (by_key.empty()) {
      for (const auto& [one, tensor] : of(name)) by_key.emplace(one, tensor);
    }
    const auto found = by_key.find(key);
    if (found == by_key.end()) {
      base::fail(ErrorKind::data, {}, operation_, "{}: there is no tensor {}, which the manifest names",
                 (folder_ / name).string(), archive::in_quotes(key));
    }
    return found->second;
  }

 private:
  fs::path folder_;
  std::string operation_;
  std::map<std::string, NamedTensors> files_;
  std::map<std::string, std::unordered_map<std::string, at::Tensor>> keys_;
};

// Ranges of one tensor, put together.
at::Tensor assemble(const std::vector<const archive::ManifestRange*>& ranges, Files& files,
                    std::string_view operation) {
  const auto& first = *ranges.front();
  const std::vector<int64_t> sizes(first.sizes.begin(), first.sizes.end());
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  const auto refuse = [&](const auto& range, std::string_view what) {
    base::fail(ErrorKind::data, {}, operation, "elements {} to {} of {} {}", range.begin, range.end,
               archive::in_quotes(range.tensor), what);
  };
  at::Tensor whole;
  int64_t covered = 0;
  for (const auto* range : ranges) {
    const at::Tensor part = files.tensor(range->file, range->key);
    const auto begin = static_cast<int64_t>(range->begin), end = static_cast<int64_t>(range->end);
    if (end > elements || part.numel() != end - begin || range->sizes != first.sizes) {
      refuse(*range, fmt::format("are {} elements in {}, of a tensor of {}", part.numel(), range->file, elements));
    }
    if (ranges.size() == 1 && end - begin == elements) return part.reshape(sizes);
    if (!whole.defined()) whole = at::empty({elements}, part.options());
    if (begin != covered) refuse(*range, fmt::format("do not follow on element {}", covered));
    whole.slice(0, begin, end).copy_(part.reshape({-1}));
    covered = end;
  }
  if (covered != elements) refuse(*ranges.back(), fmt::format("are the last, the tensor has {}", elements));
  return whole.reshape(sizes);
}

// All tensors under "model.0/", in the order of the manifest.
NamedTensors by_ranges(const Manifest& manifest, const std::string& prefix, Files& files, std::string_view operation) {
  std::vector<std::string> order;
  std::unordered_map<std::string, std::vector<const archive::ManifestRange*>> ranges;
  for (const auto& range : manifest.ranges) {
    if (!range.tensor.starts_with(prefix)) continue;
    auto& of_tensor = ranges[range.tensor];
    if (of_tensor.empty()) order.push_back(range.tensor);
    of_tensor.push_back(&range);
  }
  NamedTensors tensors;
  for (const auto& name : order) {
    auto& of_tensor = ranges[name];
    std::sort(of_tensor.begin(), of_tensor.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
    tensors.emplace_back(name.substr(prefix.size()), assemble(of_tensor, files, operation));
  }
  return tensors;
}

class Reader {
 public:
  Reader(fs::path folder, int64_t rank, c10::DeviceType accelerator, std::string_view operation)
      : folder_(std::move(folder)), rank_(rank), accelerator_(accelerator), operation_(operation) {}

  Read run() {
    if (is_there(folder_ / archive::manifest_name)) read_.manifest = archive::manifest_of(folder_, operation_);
    if (read_.manifest) {
      of_ours();
    } else {
      of_accelerate();
    }
    for (int64_t i = 0; is_there(folder_ / optimizer_file(i)); ++i) {
      content().optimizers.push_back(optimizer_from(open(optimizer_file(i))));
    }
    if (is_there(folder_ / scaler_file)) content().scaler = scaler_from(open(scaler_file));
    for (int64_t i = 0; is_there(folder_ / custom_file(i)); ++i) content().customs.push_back(custom(custom_file(i)));
    own_part();
    return std::move(read_);
  }

 private:
  Content& content() { return read_.content; }
  [[nodiscard]] TorchFile open(std::string_view name) const { return {folder_ / name, operation_}; }

  void of_ours() {
    const Manifest& manifest = *read_.manifest;
    content().step = manifest.step;
    content().epoch = manifest.epoch;
    Files files(folder_, operation_);
    for (const auto& part : manifest.parts) {
      if (part.kind == "model") {
        auto& models = content().models;
        const auto index = static_cast<size_t>(part.index);
        if (index > manifest.parts.size()) refuse_index(part);
        models.resize(std::max(models.size(), index + 1));
        models[index] = by_ranges(manifest, fmt::format("model.{}/", index), files, operation_);
      } else if (part.kind == "master_weights") {
        content().masters = by_ranges(manifest, "masters/", files, operation_);
      } else if (part.kind == "scheduler") {
        at_index(content().schedulers, part) = scheduler_from(open(scheduler_file(part.index)));
      } else if (part.kind == "loader") {
        at_index(content().loaders, part) = loader_from(open(loader_file(part.index)));
      }
    }
  }

  template <typename State>
  std::optional<State>& at_index(std::vector<std::optional<State>>& list, const archive::ManifestPart& part) const {
    const auto index = static_cast<size_t>(part.index);
    if (index > 1'000'000) refuse_index(part);
    list.resize(std::max(list.size(), index + 1));
    return list[index];
  }
  [[noreturn]] void refuse_index(const archive::ManifestPart& part) const {
    base::fail(ErrorKind::data, {}, operation_, "{}: the manifest has a {} of index {}", folder_.string(), part.kind,
               part.index);
  }

  void of_accelerate() {
    for (int64_t i = 0;; ++i) {
      if (is_there(folder_ / model_file(i))) {
        content().models.push_back(read_weights(folder_ / model_file(i), operation_));
      } else if (is_there(folder_ / model_bin_file(i))) {
        content().models.push_back(read_weights(folder_ / model_bin_file(i), operation_));
      } else {
        break;
      }
    }
    for (int64_t i = 0; is_there(folder_ / scheduler_file(i)); ++i) {
      content().schedulers.emplace_back(scheduler_from(open(scheduler_file(i))));
    }
  }

  CustomState custom(const std::string& name) const {
    const TorchFile file = open(name);
    if (auto bytes = bytes_in(file.root())) return *bytes;
    if (const auto* text = file.root().as<std::string>()) return *text;
    return file.tensors();
  }

  void own_part() {
    read_.has_own_part = is_there(folder_ / random_file(rank_));
    const int64_t of = read_.has_own_part ? rank_ : 0;
    read_.has_random_states = is_there(folder_ / random_file(of));
    if (read_.has_random_states) {
      content().random = random_states_from(open(random_file(of)), accelerator_);
      content().accumulated = content().random.step;
    }
    if (is_there(folder_ / window_file(of))) content().window = window(window_file(of));
  }

  OpenWindow window(const std::string& name) const {
    const TorchFile file = open(name);
    const Members members(file.root(), "the open window", file.origin());
    OpenWindow window{.micro_batches = members.integer("micro_batches"),
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
  Read read_;
};

}  // namespace

Read read(const fs::path& folder, int64_t rank, c10::DeviceType accelerator, std::string_view operation) {
  return Reader(folder, rank, accelerator, operation).run();
}

}  // namespace accelerate::checkpoint
