// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/merge_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/base/error.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;
using archive::ManifestRange;

std::string prefix_of(int64_t model) { return fmt::format("model.{}/", model); }

class PartsReader {
 public:
  PartsReader(const fs::path& folder, std::string_view operation)
      : folder_(folder), operation_(operation), manifest_(archive::manifest_of(folder, operation)) {}

  ModelInParts read(int64_t model) {
    const std::string prefix = prefix_of(model);
    std::map<std::string, std::vector<ManifestRange>> tensors;
    for (const ManifestRange& range : manifest_.ranges) {
      if (range.tensor.starts_with(prefix)) tensors[range.tensor.substr(prefix.size())].push_back(range);
    }
    ModelInParts result;
    std::map<std::string, std::string> by_source;  // tied tensors have the same source
    for (auto& [name, ranges] : tensors) {
      std::ranges::stable_sort(ranges, {}, &ManifestRange::begin);
      std::string source;
      for (const auto& range : ranges) source += fmt::format("{}\n{}\n{}\n", range.file, range.key, range.begin);
      const auto [first, is_new] = by_source.emplace(source, name);
      if (is_new) {
        add(result, name, ranges);
      } else {
        result.ties.emplace(name, first->second);
      }
    }
    for (auto& [name, file] : files_) result.files.push_back(std::move(file));
    return result;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail(ErrorKind::data, {}, operation_, "{}: {}", folder_.string(),
               fmt::format(format, std::forward<Args>(args)...));
  }

  const WeightFile& file(const std::string& name) {
    if (const auto known = files_.find(name); known != files_.end()) return known->second;
    const auto listed = std::ranges::find(manifest_.files, name, &archive::ManifestFile::name);
    if (const auto damage = archive::find_file_damage(*listed, folder_, /*verify=*/true)) refuse("{}", *damage);
    return files_.emplace(name, read_weight_file(folder_ / name, operation_)).first->second;
  }

  const Weight& weight(const ManifestRange& range) {
    const WeightFile& from = file(range.file);
    const auto found = std::ranges::find(from.weights, range.key, &Weight::name);
    if (found == from.weights.end()) {
      refuse("{} has no tensor {}, which the manifest names", range.file, archive::quote_for_terminal(range.key));
    }
    if (found->elements != range.end - range.begin || found->data.size() != found->bytes) {
      refuse("elements {} to {} of {} are {} elements in {}", range.begin, range.end,
             archive::quote_for_terminal(range.tensor), found->elements, range.file);
    }
    return *found;
  }

  void add(ModelInParts& result, const std::string& name, const std::vector<ManifestRange>& ranges) {
    archive::SafetensorsEntry entry{.name = name, .dtype = weight(ranges.front()).dtype, .shape = ranges.front().sizes};
    uint64_t elements = 1, covered = 0;
    for (const uint64_t size : entry.shape) {
      if (__builtin_mul_overflow(elements, size, &elements)) {
        refuse("{} has more elements than can be counted", archive::quote_for_terminal(name));
      }
    }
    auto& pieces = result.bytes[name];
    for (const ManifestRange& range : ranges) {
      const Weight& part = weight(range);
      if (part.dtype != entry.dtype || range.sizes != entry.shape) {
        refuse("{} has two dtypes or shapes", archive::quote_for_terminal(name));
      }
      if (range.begin != covered) break;  // checked below
      covered = range.end;
      pieces.push_back(part.data);
    }
    if (covered != elements) {
      refuse("elements {} to {} of {} are in no file", covered, elements, archive::quote_for_terminal(name));
    }
    result.entries.push_back(std::move(entry));
  }

  fs::path folder_;
  std::string_view operation_;
  archive::Manifest manifest_;
  std::map<std::string, WeightFile> files_;
};

}  // namespace

bool has_model_in_parts(const fs::path& folder, int64_t model) {
  if (!archive::has_own_manifest(folder)) return false;
  const auto manifest = archive::manifest_of(folder, "accelerate_merge_weights");
  return std::ranges::any_of(manifest.ranges, [prefix = prefix_of(model)](const ManifestRange& range) {
    return range.tensor.starts_with(prefix) && range.file.starts_with("parts_");
  });
}

ModelInParts read_parts(const fs::path& folder, int64_t model, std::string_view operation) {
  return PartsReader(folder, operation).read(model);
}

void write_parts(ModelInParts model, archive::Sink& sink, std::string_view operation) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  metadata.insert(model.ties.begin(), model.ties.end());
  sink.write(archive::write_safetensors(model.entries, metadata, operation));
  for (const auto& entry : model.entries) {
    for (const std::string_view piece : model.bytes.at(entry.name)) sink.write(piece);
  }
}

}  // namespace accelerate::launch
