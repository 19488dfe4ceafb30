// SPDX-License-Identifier: Apache-2.0
// Weights without the rest of a checkpoint: files and folders like those of Hugging Face Accelerate's save_model().
#include "accelerate/checkpoint/weights.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "accelerate/archive/atomic_file.hpp"
#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/weight_index.hpp"
#include "accelerate/checkpoint/dcp_tensors.hpp"
#include "accelerate/checkpoint/fsdp_files.hpp"
#include "accelerate/checkpoint/safetensors_file.hpp"
#include "accelerate/checkpoint/saved_ranges.hpp"
#include "accelerate/checkpoint/torch_file.hpp"

namespace accelerate::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<std::string_view, 2> kWholeNames{"model.safetensors", "pytorch_model.bin"};

bool is_safetensors(const fs::path& path) { return path.extension() == ".safetensors"; }

void make_parent_of(const fs::path& path, std::string_view operation) {
  if (!path.has_parent_path()) return;
  for (const fs::path& folder : archive::make_folders(path.parent_path())) archive::sync_to_disk(folder, operation);
}

archive::PickleValue add_all(TorchFileWriter& writer, const NamedTensors& tensors) {
  archive::PickleEntries entries;
  for (const auto& [name, tensor] : tensors) entries.emplace_back(name, writer.tensor(tensor, name));
  return py_dict(std::move(entries));
}

void write_weights_file(archive::Sink& sink, const NamedTensors& tensors, bool safetensors, std::string_view operation,
                        const ProvideValues& provide) {
  if (safetensors) return write_safetensors_file(sink, tensors, operation, provide);
  TorchFileWriter writer(operation);
  const archive::PickleValue root = add_all(writer, tensors);
  writer.write(sink, root, provide);
}

std::vector<at::Tensor> placeholders_of_file(const NamedTensors& tensors, bool safetensors,
                                             std::string_view operation) {
  if (safetensors) return placeholders_in_safetensors_order(tensors, operation);
  TorchFileWriter writer(operation);
  std::ignore = add_all(writer, tensors);
  return writer.placeholders();
}

// 0 for a tensor that no format supports; the writer refuses it.
uint64_t stored_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided ? tensor.nbytes() : 0;
}

// Greedy, like huggingface_hub's split_torch_state_dict_into_shards.
std::vector<NamedTensors> shards_of(const NamedTensors& tensors, uint64_t most) {
  const auto left_out = tied(tensors);
  std::vector<NamedTensors> shards;
  NamedTensors current;
  uint64_t bytes = 0;
  std::map<std::string, std::vector<size_t>> followers;  // indices of the tensors that are tied to a name
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto other = left_out.find(tensors[i].first);
    if (other != left_out.end()) followers[other->second].push_back(i);
  }
  for (const auto& [name, tensor] : tensors) {
    if (left_out.contains(name)) continue;
    const uint64_t size = stored_bytes(tensor);
    NamedTensors with_ties{{name, tensor}};
    for (const size_t i : followers[name]) with_ties.push_back(tensors[i]);
    if (size > most) {
      shards.push_back(std::move(with_ties));
      continue;
    }
    if (bytes + size > most) {
      shards.push_back(std::exchange(current, {}));
      bytes = 0;
    }
    std::move(with_ties.begin(), with_ties.end(), std::back_inserter(current));
    bytes += size;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

std::string shard_name(std::string_view whole, size_t number, size_t of) {
  const auto dot = whole.find('.');
  return fmt::format("{}-{:05}-of-{:05}{}", whole.substr(0, dot), number + 1, of, whole.substr(dot));
}

// True for names from shard_name(): "model-00001-of-00002.safetensors".
bool is_shard(std::string_view name, std::string_view whole) {
  constexpr std::string_view numbers = "-ddddd-of-ddddd";
  const auto dot = whole.find('.');
  if (name.size() != whole.size() + numbers.size() || !name.starts_with(whole.substr(0, dot)) ||
      !name.ends_with(whole.substr(dot))) {
    return false;
  }
  return std::equal(numbers.begin(), numbers.end(), name.begin() + static_cast<std::ptrdiff_t>(dot),
                    [](char wanted, char found) {
                      return wanted == 'd' ? std::isdigit(static_cast<unsigned char>(found)) != 0 : wanted == found;
                    });
}

// Weights that a reader of the folder would mistake for these: another number of shards, and the format that readers
// search for first. A pytorch_model.bin beside safetensors is kept, as in Hugging Face Accelerate.
std::vector<fs::path> stale_files(const fs::path& folder, std::string_view written, const std::set<std::string>& kept) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (kept.contains(name)) continue;
    for (const std::string_view whole : kWholeNames) {
      if (name == whole || name == index_name(whole) || is_shard(name, whole)) stale.push_back(entry.path());
      if (whole == written) break;
    }
  }
  return stale;
}

// Removes an index before its shards are replaced, because it would describe a mixture of old and new shards.
void remove_index_of(const fs::path& folder, std::string_view whole, const std::set<std::string>& names,
                     std::string_view operation) {
  const fs::path index = folder / index_name(whole);
  std::error_code error;
  const bool replaces =
      std::any_of(names.begin(), names.end(), [&](const auto& name) { return fs::exists(folder / name, error); });
  if (replaces && names.size() > 1 && fs::remove(index, error)) archive::sync_to_disk(folder, operation);
}

// A checkpoint's manifest has the checksums of its files, so other files of the same names would make it invalid.
void check_no_checkpoint(const fs::path& folder, const std::set<std::string>& names, std::string_view operation) {
  std::error_code error;
  if (!fs::exists(folder / archive::kManifestName, error)) return;
  archive::Manifest manifest;
  try {
    manifest = archive::manifest_of(folder, operation);
  } catch (const Error&) {  // not a checkpoint
    return;
  }
  for (const auto& file : manifest.files) {
    if (!names.contains(file.name)) continue;
    base::fail(ErrorKind::usage, {}, operation,
               "{} is a file of the checkpoint in {}, which could not be loaded any more; save to another folder",
               file.name, folder.string());
  }
}

void check_files(const fs::path& folder, const archive::Manifest& manifest, const std::set<std::string>& names,
                 std::string_view operation) {
  for (const auto& file : manifest.files) {
    if (!names.contains(file.name)) continue;
    if (const auto wrong = archive::find_file_damage(file, folder, /*verify=*/true)) {
      base::fail(ErrorKind::data, {}, operation, "{} is damaged: {}", folder.string(), *wrong);
    }
  }
}

// Compares a checkpoint's file with the manifest.
void check_index_files(const fs::path& path, std::string_view operation) {
  const fs::path folder = path.parent_path();
  if (!archive::has_own_manifest(folder)) return;
  check_files(folder, archive::manifest_of(folder, operation), {path.filename().string()}, operation);
}

NamedTensors read_one_file(const fs::path& path, std::string_view operation) {
  check_index_files(path, operation);
  return is_safetensors(path) ? SafetensorsFile(path, operation).tensors()
                              : TorchFile(path, operation).all_as_tensors();
}

NamedTensors read_sharded(const fs::path& index, std::string_view operation) {
  const archive::MappedFile file(index, operation);
  const archive::Origin origin{.path = index.string(), .operation = std::string(operation)};
  std::map<std::string, std::map<std::string, at::Tensor>> files;
  NamedTensors tensors;
  for (const auto& [name, shard] : archive::read_weight_index(file.text(), origin)) {
    const auto [found, is_new] = files.try_emplace(shard);
    if (is_new) {
      for (auto& [its, tensor] : read_one_file(index.parent_path() / shard, operation)) found->second[its] = tensor;
    }
    const auto tensor = found->second.find(name);
    if (tensor == found->second.end()) {
      origin.broken("{} is not in the file {}", archive::quote_for_terminal(name), archive::quote_for_terminal(shard));
    }
    tensors.push_back(*tensor);
  }
  return tensors;
}

// The first model of a checkpoint without a file of whole weights.
SavedWeights weights_in_parts(const fs::path& folder, std::string_view operation) {
  constexpr std::string_view prefix = "model.0/";
  const archive::Manifest manifest = archive::manifest_of(folder, operation);
  const auto ranges = std::make_shared<SavedRanges>(folder, manifest, operation);
  SavedWeights saved{.elements = [ranges](const at::Tensor& placeholder, int64_t begin, int64_t end) {
    return ranges->read(placeholder, begin, end);
  }};
  std::set<std::string> files;
  for (const archive::ManifestRange& range : manifest.ranges) {
    if (range.tensor.starts_with(prefix)) files.insert(range.file);
  }
  check_files(folder, manifest, files, operation);
  for (const std::string& name : ranges->names(prefix)) {
    saved.tensors.emplace_back(name.substr(prefix.size()), ranges->tensor(name));
  }
  return saved;
}

// A folder of DCP, or a checkpoint of Hugging Face Accelerate's FSDP.
SavedWeights fsdp_weights(const fs::path& path, std::string_view operation) {
  const auto dcp = std::make_shared<DcpTensors>();
  return {.tensors =
              is_dcp_folder(path) ? read_dcp_weights(path, operation, *dcp) : read_fsdp_model(path, 0, operation, *dcp),
          .elements = [dcp](const at::Tensor& placeholder, int64_t begin, int64_t end) {
            return dcp->read(placeholder, begin, end);
          }};
}

}  // namespace

std::vector<Shard> assign_to_ranks(const NamedTensors& tensors, std::string_view whole, uint64_t max_bytes) {
  std::vector<Shard> shards;
  for (NamedTensors& list : shards_of(tensors, max_bytes)) shards.push_back({.tensors = std::move(list)});
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? std::string(whole) : shard_name(whole, i, shards.size());
  }
  return shards;
}

std::string index_text(const std::vector<Shard>& shards) {
  json map = json::object();
  uint64_t total = 0;
  for (const Shard& shard : shards) {
    const auto left_out = tied(shard.tensors);
    for (const auto& [name, tensor] : shard.tensors) {
      map[name] = shard.file;
      if (!left_out.contains(name)) total += stored_bytes(tensor);
    }
  }
  return json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
}

std::string index_name(std::string_view whole) { return std::string(whole) + ".index.json"; }

uint64_t parse_size(std::string_view text, std::string_view operation, std::string_view option) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array<Unit, 6> units{
      {{"GIB", 1024.0 * 1024 * 1024}, {"MIB", 1024.0 * 1024}, {"KIB", 1024.0}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}}};
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  double factor = 1;
  std::string_view digits = upper;
  for (const auto& unit : units) {
    if (!digits.ends_with(unit.name)) continue;
    digits.remove_suffix(unit.name.size());
    factor = text.ends_with('b') ? unit.bytes / 8 : unit.bytes;  // a final "b" means bits, as in Accelerate
    break;
  }
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || !(number >= 0) || number * factor > 9e18) {
    base::fail(ErrorKind::usage, {}, operation,
               "{} is {}, must be a number of bytes, or one with KB, MB, GB, KiB, MiB or GiB (\"5GB\")", option,
               archive::quote_for_terminal(text));
  }
  return static_cast<uint64_t>(number * factor);
}

std::vector<at::Tensor> placeholders_in_order(const NamedTensors& tensors, const WeightsOptions& options,
                                              std::string_view operation) {
  std::vector<at::Tensor> all;
  const std::string_view whole = kWholeNames[options.safe_serialization ? 0 : 1];
  for (const Shard& shard : assign_to_ranks(tensors, whole, parse_size(options.max_shard_size, operation))) {
    const auto list = placeholders_of_file(shard.tensors, options.safe_serialization, operation);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

void save_weights(const fs::path& folder, const NamedTensors& tensors, const WeightsOptions& options,
                  std::string_view operation, const ProvideValues& provide) {
  const std::string_view whole = kWholeNames[options.safe_serialization ? 0 : 1];
  const auto shards = assign_to_ranks(tensors, whole, parse_size(options.max_shard_size, operation));
  std::set<std::string> names;
  for (const Shard& shard : shards) names.insert(shard.file);
  if (shards.size() > 1) names.insert(index_name(whole));
  auto changed = names;
  const auto stale = stale_files(folder, whole, names);
  for (const fs::path& path : stale) changed.insert(path.filename().string());
  check_no_checkpoint(folder, changed, operation);
  make_parent_of(folder / whole, operation);
  // All files are written before one is moved into place; the index is last.
  std::vector<std::unique_ptr<archive::AtomicFile>> files;
  for (const Shard& shard : shards) {
    files.push_back(std::make_unique<archive::AtomicFile>(folder / shard.file, operation));
    write_weights_file(files.back()->sink(), shard.tensors, options.safe_serialization, operation, provide);
  }
  if (shards.size() > 1) {
    files.push_back(std::make_unique<archive::AtomicFile>(folder / index_name(whole), operation));
    files.back()->sink().write(index_text(shards));
  }
  remove_index_of(folder, whole, names, operation);
  for (auto& file : files) file->commit(archive::Existing::replace);
  std::error_code error;
  for (const fs::path& path : stale) fs::remove(path, error);
}

void save_file(const fs::path& path, const NamedTensors& tensors, std::string_view operation) {
  check_no_checkpoint(path.parent_path(), {path.filename().string()}, operation);
  make_parent_of(path, operation);
  archive::AtomicFile file(path, operation);
  write_weights_file(file.sink(), tensors, is_safetensors(path), operation, {});
  file.commit(archive::Existing::replace);
}

SavedWeights open_weights(const fs::path& path, std::string_view operation) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const std::string_view name : kWholeNames) {
      if (fs::exists(path / name, error)) return {.tensors = read_one_file(path / name, operation)};
      const fs::path index = path / index_name(name);
      if (fs::exists(index, error)) return {.tensors = read_sharded(index, operation)};
    }
    if (archive::has_own_manifest(path)) return weights_in_parts(path, operation);
    if (is_dcp_folder(path) || has_fsdp_model(path, 0)) return fsdp_weights(path, operation);
    base::fail(ErrorKind::io, {}, operation, "{} has neither {}, nor {}, nor an index of either", path.string(),
               kWholeNames[0], kWholeNames[1]);
  }
  if (path.extension() == ".json") return {.tensors = read_sharded(path, operation)};
  return {.tensors = read_one_file(path, operation)};
}

NamedTensors read_weights(const fs::path& path, std::string_view operation) {
  SavedWeights saved = open_weights(path, operation);
  for (auto& [name, tensor] : saved.tensors) tensor = state::whole_of(tensor, saved.elements);
  return std::move(saved.tensors);
}

}  // namespace accelerate::checkpoint
