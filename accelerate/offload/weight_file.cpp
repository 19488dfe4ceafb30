// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/weight_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/weight_index.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/safetensors_file.hpp"
#include "accelerate/checkpoint/weights.hpp"

namespace accelerate::offload {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhole = "model.safetensors";

bool is_safetensors_index(const fs::path& path) { return path.string().ends_with(".safetensors.index.json"); }

// The file or index of a folder; empty if there is none.
fs::path find_weight_file(const fs::path& path) {
  if (path.extension() == ".safetensors" && !fs::is_directory(path)) return path;
  if (is_safetensors_index(path)) return path;
  for (const fs::path& file : {path / kWhole, path / checkpoint::index_name(kWhole)}) {
    if (fs::exists(file)) return file;
  }
  return {};
}

void add_file(FileTensors& tensors, const fs::path& path, std::string_view operation) {
  const auto file = std::make_shared<WeightFile>(path, operation);
  const checkpoint::SafetensorsFile mapped(path, operation);
  const archive::SafetensorsHeader& header = mapped.header();
  for (const archive::SafetensorsEntry& entry : header.tensors) {
    const auto dtype = checkpoint::dtype_of_safetensors(entry.dtype);
    if (!dtype) {
      base::fail(ErrorKind::data, {}, operation, "tensor {} of {} is of dtype {}, which LibTorch lacks", entry.name,
                 path.string(), entry.dtype);
    }
    tensors[entry.name] = {.file = file,
                           .begin = header.data_begin + entry.begin,
                           .sizes = std::vector<int64_t>(entry.shape.begin(), entry.shape.end()),
                           .dtype = *dtype};
  }
  for (const auto& [name, written] : header.metadata) {
    const auto found = tensors.find(written);
    if (found != tensors.end()) tensors.try_emplace(name, found->second);
  }
}

}  // namespace

WeightFile::WeightFile(fs::path path, std::string_view operation)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_) {
    base::fail(ErrorKind::io, {}, operation, "{} cannot be opened: {}", path_.string(), std::strerror(errno));
  }
}

void WeightFile::read(uint64_t begin, void* to, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count =
        ::pread(file_.get(), static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(begin + done));
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count == 0) {
      base::fail(ErrorKind::io, {}, "offload", "{} ends at byte {}, expected {}; it was changed after it was opened",
                 path_.string(), begin + done, begin + bytes);
    } else if (errno != EINTR) {
      base::fail(ErrorKind::io, {}, "offload", "{} cannot be read: {}", path_.string(), std::strerror(errno));
    }
  }
}

bool has_safetensors(const fs::path& path) { return !find_weight_file(path).empty(); }

FileTensors open_safetensors(const fs::path& path, std::string_view operation) {
  const fs::path found = find_weight_file(path);
  if (found.empty()) {
    base::fail(ErrorKind::io, {}, operation, "{} has neither {} nor {}", path.string(), kWhole,
               checkpoint::index_name(kWhole));
  }
  FileTensors tensors;
  if (!is_safetensors_index(found)) {
    add_file(tensors, found, operation);
    return tensors;
  }
  const archive::MappedFile text(found, operation);
  const auto index =
      archive::read_weight_index(text.text(), {.path = found.string(), .operation = std::string(operation)});
  std::set<std::string> files;
  for (const auto& [name, file] : index) files.insert(file);
  for (const std::string& file : files) add_file(tensors, found.parent_path() / file, operation);
  for (const auto& [name, file] : index) {
    if (tensors.contains(name)) continue;
    base::fail(ErrorKind::data, {}, operation, "{} states that {} contains {}, but it does not", found.string(), file,
               name);
  }
  return tensors;
}

}  // namespace accelerate::offload
