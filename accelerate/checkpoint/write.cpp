// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/write.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <unordered_map>
#include <utility>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/base/parallel_for.hpp"
#include "accelerate/checkpoint/file_names.hpp"
#include "accelerate/checkpoint/python_state.hpp"
#include "accelerate/checkpoint/safetensors_file.hpp"
#include "accelerate/checkpoint/weights.hpp"

namespace accelerate::checkpoint {

using archive::Manifest;
using archive::PickleValue;

namespace {

/// A file to write, with its entry in the manifest.
struct WriteJob {
  std::string kind;
  int64_t index = 0;
  std::string name;
  std::function<void(archive::Sink&)> write;
  std::vector<archive::ManifestRange> ranges{};
  bool is_divided = true;  // if false, the first writer writes it, because ranks may differ
  /// Saved objects that have tensors in the file, if it is not the object of `kind` and `index`.
  std::set<std::pair<std::string, int64_t>> contains{};
};

archive::ManifestRange whole(std::string tensor, const at::Tensor& of, std::string file, std::string key) {
  const std::vector<uint64_t> sizes(of.sizes().begin(), of.sizes().end());
  return {std::move(tensor), sizes, 0, static_cast<uint64_t>(of.numel()), std::move(file), std::move(key)};
}

class WriteJobs {
 public:
  WriteJobs(const CheckpointContent& content, const Part& part, std::string_view operation)
      : content_(content), part_(part), operation_(operation) {}

  // Data common to all ranks, and data of the first writer.
  std::vector<WriteJob> common() {
    for (size_t i = 0; i < content_.models.size(); ++i) {
      const bool is_in_parts = i < content_.in_parts.size() && content_.in_parts[i];
      if (is_in_parts && content_.models[i].empty()) continue;
      const auto index = static_cast<int64_t>(i);
      model(index, is_in_parts ? whole_tensors_file(index) : model_file(index), content_.models[i],
            i >= content_.with_buffers.size() || !content_.with_buffers[i]);
    }
    if (!content_.masters.empty()) {
      weights("master_weights", 0, {std::string(kMastersFile), content_.masters}, "masters/");
    }
    for (size_t i = 0; i < content_.optimizers.size(); ++i) optimizer(static_cast<int64_t>(i), content_.optimizers[i]);
    states("scheduler", content_.schedulers, scheduler_file);
    states("loader", content_.loaders, loader_file);
    for (size_t i = 0; i < content_.loader_generators.size(); ++i) {
      if (content_.loader_generators[i]) loader_generator(static_cast<int64_t>(i), *content_.loader_generators[i]);
    }
    if (content_.scaler) {
      value("scaler", 0, std::string(kScalerFile), [this](TorchFileWriter&) { return to_python(*content_.scaler); });
    }
    for (size_t i = 0; i < content_.customs.size(); ++i) custom(static_cast<int64_t>(i), content_.customs[i]);
    return std::move(jobs_);
  }

  // Data of this rank only.
  std::vector<WriteJob> own() {
    value("random_states", part_.rank, random_file(part_.rank), [this](TorchFileWriter& writer) {
      RandomStates states = content_.random;
      states.step = content_.accumulated;
      states.local_buffers = content_.local_buffers;
      return to_python(states, part_.accelerator, writer);
    });
    if (content_.window) {
      value("window", part_.rank, window_file(part_.rank),
            [this](TorchFileWriter& writer) { return window(*content_.window, writer); });
      ranges_of(content_.window->gradients, "gradients.");
    }
    const auto tensors = [&](const char* kind, const std::string& name, const NamedTensors& list) {
      if (list.empty()) return;
      value(kind, part_.rank, name, [&list](TorchFileWriter& writer) { return dict(list, writer); });
      ranges_of(list);
    };
    own_buffers_ = own_buffers();
    tensors("buffers", buffers_file(part_.rank), own_buffers_);
    tensors("comm_hooks", comm_hooks_file(part_.rank), content_.comm_hooks);
    parts();
    return std::move(jobs_);
  }

 private:
  void model(int64_t index, const std::string& whole, const NamedTensors& tensors, bool is_divided) {
    auto shards = assign_to_ranks(tensors, whole, part_.max_bytes);
    const size_t first = jobs_.size();
    if (shards.size() > 1) {
      jobs_.push_back(
          {"model", index, index_name(whole), [text = index_text(shards)](archive::Sink& sink) { sink.write(text); }});
    }
    for (Shard& shard : shards) weights("model", index, std::move(shard), fmt::format("model.{}/", index));
    for (size_t i = first; i < jobs_.size(); ++i) jobs_[i].is_divided = is_divided;
  }

  void weights(const char* kind, int64_t index, Shard shard, const std::string& prefix) {
    WriteJob job{kind, index, shard.file, {}};
    const auto left_out = tied(shard.tensors);
    for (const auto& [key, tensor] : shard.tensors) {
      const auto other = left_out.find(key);
      job.ranges.push_back(whole(prefix + key, tensor, shard.file, other == left_out.end() ? key : other->second));
    }
    job.write = [tensors = std::move(shard.tensors), this](archive::Sink& sink) {
      write_safetensors_file(sink, tensors, operation_);
    };
    jobs_.push_back(std::move(job));
  }

  // Tensors of which each rank has its own elements. One list for all objects, so that a rank has few files.
  void parts() {
    NamedTensors tensors;
    std::unordered_map<std::string, const TensorPart*> by_name;
    for (const TensorPart& part : content_.parts) {
      const bool has_index = part.kind != "master_weights";
      const std::string name =
          has_index ? fmt::format("{}.{}/{}", part.kind, part.index, part.name) : fmt::format("masters/{}", part.name);
      tensors.emplace_back(name, part.elements);
      by_name.emplace(name, &part);
    }
    if (tensors.empty()) return;
    for (Shard& shard : assign_to_ranks(tensors, parts_file(part_.rank), part_.max_bytes)) {
      weights("parts", part_.rank, std::move(shard), "");
      WriteJob& job = jobs_.back();
      for (archive::ManifestRange& range : job.ranges) {
        const TensorPart& part = *by_name.at(range.tensor);
        range.sizes.assign(part.sizes.begin(), part.sizes.end());
        range.begin = static_cast<uint64_t>(part.begin);
        range.end = static_cast<uint64_t>(part.begin + part.elements.numel());
        job.contains.emplace(part.kind, part.index);
      }
    }
  }

  void value(const char* kind, int64_t index, const std::string& name,
             std::function<PickleValue(TorchFileWriter&)> make) {
    jobs_.push_back({kind, index, name, [make = std::move(make), this](archive::Sink& sink) {
                       TorchFileWriter writer(operation_);
                       const PickleValue root = make(writer);
                       writer.write(sink, root);
                     }});
  }

  void optimizer(int64_t index, const state::OptimizerState& state) {
    const std::string name = optimizer_file(index);
    value("optimizer", index, name, [&state](TorchFileWriter& writer) { return to_python(state, writer); });
    for (const auto& [number, tensors] : state.tensors) {
      for (const auto& [key, tensor] : tensors) {
        jobs_.back().ranges.push_back(whole(fmt::format("optimizer.{}/{}.{}", index, number, key), tensor, name,
                                            fmt::format("state.{}.{}", number, key)));
      }
    }
  }

  template <typename State>
  void states(const char* kind, const std::vector<std::optional<State>>& list, std::string (*name)(int64_t)) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i]) continue;
      const auto index = static_cast<int64_t>(i);
      value(kind, index, name(index), [&state = *list[i]](TorchFileWriter&) { return to_python(state); });
    }
  }

  // Rank 0's: if rank 0 reads for all ranks, only its generator is used.
  void loader_generator(int64_t index, const LoaderGenerator& generator) {
    value("loader_generator", index, loader_generator_file(index), [&generator](TorchFileWriter& writer) {
      archive::PickleEntries entries{{std::string("pass"), generator.pass}};
      if (generator.state.defined()) {
        entries.emplace_back(std::string("state"), writer.tensor(generator.state, "the generator of a loader"));
      }
      return py_dict(std::move(entries));
    });
    jobs_.back().is_divided = false;
  }

  void custom(int64_t index, const CustomState& state) {
    value("custom", index, custom_file(index), [&state](TorchFileWriter& writer) -> PickleValue {
      if (const auto* text = std::get_if<std::string>(&state)) return archive::PickleBytes{*text};
      return dict(std::get<NamedTensors>(state), writer);
    });
    jobs_.back().is_divided = false;
    if (const auto* tensors = std::get_if<NamedTensors>(&state)) ranges_of(*tensors);
  }

  // Adds ranges to the last job. `path` is the prefix of names in its file.
  void ranges_of(const NamedTensors& tensors, const std::string& path = {}) {
    WriteJob& job = jobs_.back();
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.defined()) continue;  // the writer reports it
      job.ranges.push_back(whole(fmt::format("{}.{}/{}", job.kind, job.index, name), tensor, job.name, path + name));
    }
  }

  // Returns the buffers that differ from those in the model's file.
  [[nodiscard]] NamedTensors own_buffers() const {
    std::unordered_map<std::string_view, const at::Tensor*> rank_0_buffers;
    for (const auto& [name, tensor] : content_.buffers_of_rank_0) rank_0_buffers.emplace(name, &tensor);
    NamedTensors own;
    for (const auto& [name, tensor] : content_.buffers) {
      const auto other = rank_0_buffers.find(name);
      if (other != rank_0_buffers.end() && has_same_bytes(tensor, *other->second, name)) continue;
      own.emplace_back(name, tensor);
    }
    return own;
  }
  [[nodiscard]] bool has_same_bytes(const at::Tensor& one, const at::Tensor& other, std::string_view name) const {
    if (one.scalar_type() != other.scalar_type() || one.sizes() != other.sizes()) return false;
    return tensor_bytes(as_written(one, name, operation_)) == tensor_bytes(as_written(other, name, operation_));
  }

  static PickleValue dict(const NamedTensors& tensors, TorchFileWriter& writer) {
    archive::PickleEntries entries;
    for (const auto& [name, tensor] : tensors) entries.emplace_back(name, writer.tensor(tensor, name));
    return py_dict(std::move(entries));
  }

  static PickleValue window(const OpenWindow& window, TorchFileWriter& writer) {
    return py_dict({{std::string("micro_batches"), window.micro_batches},
                    {std::string("of"), window.of},
                    {std::string("loss_unit"), window.loss_unit},
                    {std::string("count"), window.count},
                    {std::string("undivided"), window.undivided},
                    {std::string("gradients"), dict(window.gradients, writer)}});
  }

  const CheckpointContent& content_;
  const Part& part_;
  std::string_view operation_;
  NamedTensors own_buffers_;
  std::vector<WriteJob> jobs_;
};

archive::ManifestFile execute(const std::filesystem::path& folder, const WriteJob& job, bool durable,
                              std::string_view operation) {
  archive::FileSink sink(folder / job.name, operation);
  job.write(sink);
  sink.finish(durable);
  return {job.name, sink.written(), sink.checksum()};
}

}  // namespace

Manifest write_checkpoint_part(const std::filesystem::path& folder, const CheckpointContent& content, const Part& part,
                               std::string_view operation) {
  // The jobs of a list refer to its Jobs object.
  WriteJobs of_all(content, part, operation), of_rank(content, part, operation);
  std::vector<WriteJob> jobs;
  if (part.writer >= 0) {
    int64_t number = 0;
    for (WriteJob& job : of_all.common()) {
      const int64_t writer = job.is_divided ? number % part.writers : 0;
      ++number;
      if (writer == part.writer) jobs.push_back(std::move(job));
    }
  }
  for (WriteJob& job : of_rank.own()) jobs.push_back(std::move(job));
  Manifest manifest;
  manifest.files.resize(jobs.size());
  base::parallel_for(jobs.size(),  // the largest files are first in the list
                     [&](size_t i) { manifest.files[i] = execute(folder, jobs[i], part.durable, operation); });
  for (WriteJob& job : jobs) {
    add_part(manifest, {job.kind, job.index, {job.name}});
    for (const auto& [kind, index] : job.contains) add_part(manifest, {kind, index, {job.name}});
    std::move(job.ranges.begin(), job.ranges.end(), std::back_inserter(manifest.ranges));
  }
  return manifest;
}

void add_part(Manifest& manifest, archive::ManifestPart part) {
  const auto found = std::find_if(manifest.parts.begin(), manifest.parts.end(), [&](const auto& other) {
    return other.kind == part.kind && other.index == part.index;
  });
  if (found == manifest.parts.end()) {
    manifest.parts.push_back(std::move(part));
  } else {
    std::move(part.files.begin(), part.files.end(), std::back_inserter(found->files));
  }
}

void add_foreign_files(const std::filesystem::path& folder, Manifest& manifest, bool durable,
                       std::string_view operation) {
  std::set<std::string> known;
  for (const auto& file : manifest.files) known.insert(file.name);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (known.contains(name) || name == archive::kLockName) continue;
    // A removed file that is still open has such a name on NFS and sshfs.
    if (name.starts_with(".nfs") || name.starts_with(".fuse_hidden")) continue;
    if (!entry.is_regular_file()) {
      base::fail(ErrorKind::usage, {}, operation, "a hook made {} in the checkpoint, which may contain only files",
                 entry.path().string());
    }
    if (durable) archive::sync_to_disk(entry.path(), operation);
    const archive::MappedFile file(entry.path(), operation);
    manifest.files.push_back({name, file.size(), archive::checksum_of(file.text())});
    manifest.parts.push_back({"other", 0, {name}});
  }
}

}  // namespace accelerate::checkpoint
