// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/dcp_folder.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

namespace accelerate::archive {

// A chunk's tensor in its item.
struct DcpFolder::Source {
  TorchTensor tensor{};
  std::string_view item{};
};

// Elements of a chunk that are consecutive in the whole tensor.
struct DcpFolder::Run {
  uint64_t begin = 0, end = 0;  // elements of the whole tensor
  size_t chunk = 0;
  uint64_t first = 0;  // row-major position of the first element in the chunk
};

// Where the elements of a range are: ascending runs without gaps.
struct DcpFolder::Plan {
  std::vector<Run> runs{};
  std::map<size_t, Source> sources{};  // by chunk: only those that overlap
};

namespace {

// Returns the number of last dimensions that a run of consecutive elements spans.
size_t spanned_dimensions(const DcpTensor& tensor, const DcpChunk& chunk) {
  size_t spanned = 0;
  while (spanned < tensor.shape.size()) {
    const size_t i = tensor.shape.size() - 1 - spanned++;
    if (chunk.sizes[i] != tensor.shape[i]) break;
  }
  return spanned;
}

// Calls run(first element in the whole tensor, first element in the chunk, length) for each run of a chunk.
template <typename Call>
void each_run(const DcpTensor& tensor, const DcpChunk& chunk, const Call& run) {
  if (chunk.elements == 0) return;
  const size_t dimensions = tensor.shape.size();
  const size_t outer = dimensions - spanned_dimensions(tensor, chunk);
  std::vector<uint64_t> steps(dimensions, 1);  // row-major strides of the whole tensor
  for (size_t i = dimensions; i-- > 1;) steps[i - 1] = steps[i] * tensor.shape[i];
  uint64_t start = 0, length = 1;
  for (size_t i = 0; i < dimensions; ++i) start += chunk.offsets[i] * steps[i];
  for (size_t i = outer; i < dimensions; ++i) length *= chunk.sizes[i];
  std::vector<uint64_t> position(outer, 0);
  for (uint64_t done = 0; done < chunk.elements; done += length) {
    run(start, done, length);
    for (size_t i = outer; i-- > 0;) {
      start += steps[i];
      if (++position[i] < chunk.sizes[i]) break;
      start -= steps[i] * std::exchange(position[i], 0);
    }
  }
}

// Returns the position in the storage of an element at a row-major position.
uint64_t storage_position(const TorchTensor& tensor, uint64_t position) {
  uint64_t at = tensor.offset;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    at += position % tensor.shape[i] * tensor.stride[i];
    position /= tensor.shape[i];
  }
  return at;
}

void copy(const TorchTensor& tensor, std::string_view item, uint64_t first, uint64_t count, char* to) {
  const uint64_t size = tensor.bits / 8;
  if (tensor.is_contiguous()) {
    std::memcpy(to, item.data() + tensor.begin + (tensor.offset + first) * size, count * size);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * size, item.data() + tensor.begin + storage_position(tensor, first + i) * size, size);
  }
}

}  // namespace

DcpFolder::DcpFolder(std::filesystem::path folder, std::string_view operation)
    : folder_(std::move(folder)),
      origin_{.path = (folder_ / kDcpMetadataName).string(), .operation = std::string(operation)} {
  const MappedFile file(folder_ / kDcpMetadataName, operation);
  metadata_ = read_dcp_metadata(file.text(), origin_);
  for (size_t i = 0; i < metadata_.tensors.size(); ++i) {
    if (!tensors_.emplace(metadata_.tensors[i].name, i).second) {
      origin_.broken("two tensors have the name {}", quote_for_terminal(metadata_.tensors[i].name));
    }
  }
}

const DcpTensor* DcpFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &metadata_.tensors[found->second];
}

Origin DcpFolder::origin_of(const DcpItem& item, const std::string& name) const {
  return {.path = fmt::format("{}: the item of {}", (folder_ / item.file).string(), quote_for_terminal(name)),
          .operation = origin_.operation};
}

std::string_view DcpFolder::bytes_of(const DcpItem& item, const std::string& name) {
  auto& file = files_[item.file];
  if (file == nullptr) file = std::make_unique<MappedFile>(folder_ / item.file, origin_.operation);
  if (item.begin > file->size() || item.size > file->size() - item.begin) {
    origin_of(item, name)
        .broken("{} bytes from byte {} on are expected, the file has {}; it was cut", item.size, item.begin,
                file->size());
  }
  return file->text().substr(item.begin, item.size);
}

DcpFolder::Source DcpFolder::open(const DcpTensor& tensor, const DcpChunk& chunk) {
  const Origin origin = origin_of(chunk.item, tensor.name);
  Source source{.item = bytes_of(chunk.item, tensor.name)};
  const TorchArchive archive(source.item, origin);
  source.tensor = archive.tensor(archive.root(), tensor.name);
  const TorchTensor& found = source.tensor;
  if (found.dtype != tensor.dtype) origin.broken("its dtype is {}, .metadata has {}", found.dtype, tensor.dtype);
  if (found.shape != chunk.sizes) origin.broken("its shape differs from that of the chunk in .metadata");
  // An expanded tensor has few bytes and any number of elements, and DCP writes none.
  if (found.elements > (found.end - found.begin) / (found.bits / 8)) {
    origin.broken("its {} elements are more than those of its storage", found.elements);
  }
  if (found.is_conj || found.is_neg) origin.broken("its conj or neg bit is set, which is not read here");
  return source;
}

DcpFolder::Plan DcpFolder::plan(const DcpTensor& tensor, uint64_t begin, uint64_t end) {
  if (begin > end || end > tensor.elements) {
    origin_.fail(ErrorKind::usage, "elements {} to {} of {} are read, it has {}", begin, end,
                 quote_for_terminal(tensor.name), tensor.elements);
  }
  Plan plan;
  std::vector<Run>& runs = plan.runs;
  std::map<size_t, Source>& sources = plan.sources;
  for (size_t i = 0; i < tensor.chunks.size(); ++i) {
    each_run(tensor, tensor.chunks[i], [&](uint64_t start, uint64_t first, uint64_t length) {
      const uint64_t from = std::max(start, begin), until = std::min(start + length, end);
      if (from >= until) return;
      if (!sources.contains(i)) sources.emplace(i, open(tensor, tensor.chunks[i]));  // before runs use memory
      runs.push_back({.begin = from, .end = until, .chunk = i, .first = first + (from - start)});
    });
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  uint64_t covered = begin;
  for (const Run& run : runs) {
    if (run.begin > covered) break;
    if (run.begin < covered) {
      origin_.broken("elements {} to {} of {} are in two items", run.begin, std::min(run.end, covered),
                     quote_for_terminal(tensor.name));
    }
    covered = run.end;
  }
  if (covered != end) {
    const auto next = std::find_if(runs.begin(), runs.end(), [&](const Run& run) { return run.begin > covered; });
    origin_.broken("elements {} to {} of {} are in no item", covered, next == runs.end() ? end : next->begin,
                   quote_for_terminal(tensor.name));
  }
  return plan;
}

void DcpFolder::read(const DcpTensor& tensor, uint64_t begin, uint64_t end, const std::function<char*()>& destination) {
  const Plan plan = this->plan(tensor, begin, end);
  if (plan.runs.empty()) return;
  char* const to = destination();
  for (const Run& run : plan.runs) {
    const Source& source = plan.sources.at(run.chunk);
    copy(source.tensor, source.item, run.first, run.end - run.begin, to + (run.begin - begin) * (tensor.bits / 8));
  }
}

void DcpFolder::check(const DcpTensor& tensor) { std::ignore = plan(tensor, 0, tensor.elements); }

std::optional<std::vector<DcpFolder::MappedElements>> DcpFolder::mapped(const DcpTensor& tensor, uint64_t begin,
                                                                        uint64_t end) {
  const Plan plan = this->plan(tensor, begin, end);
  std::vector<MappedElements> list;
  for (const Run& run : plan.runs) {
    const Source& source = plan.sources.at(run.chunk);
    if (!source.tensor.is_contiguous()) return std::nullopt;
    const uint64_t size = source.tensor.bits / 8;
    list.push_back({.begin = run.begin,
                    .end = run.end,
                    .bytes = source.item.substr(source.tensor.begin + (source.tensor.offset + run.first) * size,
                                                (run.end - run.begin) * size)});
  }
  return list;
}

PickleValue DcpFolder::value(const DcpValue& value) {
  return TorchArchive(bytes_of(value.item, value.name), origin_of(value.item, value.name)).root();
}

}  // namespace accelerate::archive
