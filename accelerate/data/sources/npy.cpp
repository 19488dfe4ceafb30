// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/npy.hpp"

#include <ATen/ops/index_select.h>
#include <fmt/ranges.h>

#include <bit>
#include <memory>
#include <utility>

#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/labels.hpp"
#include "accelerate/data/sources/npy_header.hpp"

namespace accelerate::data {
namespace {

static_assert(std::endian::native == std::endian::little, "mapped numbers are used as they are in the file");

void check_length(const MappedFile& file, const NpyHeader& header) {
  const auto described = fmt::format("[{}] {}", fmt::join(header.shape, ", "), dtype_name(header.dtype));
  const auto expected = array_bytes(header.shape, header.dtype);
  if (!expected)
    base::fail(ErrorKind::data, {}, "npy", "{} is damaged: its header has {}, more than any file contains",
               file.path().string(), described);
  const uint64_t found = file.size() - header.size;
  if (found != *expected)
    base::fail(ErrorKind::data, {}, "npy", "{} is {}: expected {} bytes after the header, {}, found {}",
               file.path().string(), found < *expected ? "cut off" : "too long", *expected, described, found);
}

// Readers may require alignment.
void check_alignment(uint64_t offset, at::ScalarType dtype, const std::filesystem::path& path,
                     std::string_view operation, std::string_view remedy) {
  if (offset % c10::elementSize(dtype) != 0)
    base::fail(ErrorKind::data, {}, operation,
               "{} has its first number at byte {}: expected a multiple of {}, as it is {}; {}", path.string(), offset,
               c10::elementSize(dtype), dtype_name(dtype), remedy);
}

uint64_t sample_bytes(const RawFile& file) {
  const auto size = array_bytes(file.sample_shape, file.dtype);
  if (!size || *size == 0)
    base::fail(ErrorKind::usage, {}, "map_raw", "sample_shape is [{}], must be the shape of at least one number",
               fmt::join(file.sample_shape, ", "));
  if (file.header_bytes < 0)
    base::fail(ErrorKind::usage, {}, "map_raw", "header_bytes is {}, must be at least 0", file.header_bytes);
  return *size;
}

/// Selected samples of a source.
class SomeSamples final : public DerivedSource<Batch> {
 public:
  SomeSamples(SourcePtr<Batch> source, at::Tensor places)
      : DerivedSource("npy", places.size(0), traits_of(source)),
        source_(std::move(source)),
        places_(std::move(places)) {}

 private:
  [[nodiscard]] Batch make(const at::Tensor& indices, const ReadContext& context) const override {
    return read_from(*source_, places_.index_select(0, indices), context);
  }

  SourcePtr<Batch> source_;
  at::Tensor places_;  // [size()] int64
};

Loader drop_broken_samples(const at::Tensor& data, const at::Tensor& target, const NpyFiles& files,
                           const LoaderOptions& options) {
  check_are_labels(target, *files.classes, files.target, "npy");
  SkippedSamples left_out;
  const auto places = with_labels(target, *files.classes, files.target, left_out);
  left_out.tell("npy", target.size(0), "samples");
  if (left_out.samples == 0) return from_tensors(data, target, options);
  return Loader(std::make_shared<SomeSamples>(memory_source(data, target), places), options);
}

}  // namespace

at::Tensor map_npy(const std::filesystem::path& path) {
  const auto file = std::make_shared<MappedFile>(path, "npy");
  const auto header = read_npy_header(file->text(), path);
  check_length(*file, header);
  check_alignment(header.size, header.dtype, path, "npy", "save it again with numpy.save");
  return tensor_in(file, header.size, header.shape, header.dtype);
}

at::Tensor map_raw(const RawFile& raw) {
  const uint64_t size = sample_bytes(raw);
  const auto offset = static_cast<uint64_t>(raw.header_bytes);
  const auto file = std::make_shared<MappedFile>(raw.path, "map_raw");
  if (file->size() < offset)
    base::fail(ErrorKind::data, {}, "map_raw", "{} is cut off: expected a header of {} bytes, found {}",
               raw.path.string(), offset, file->size());
  check_alignment(offset, raw.dtype, raw.path, "map_raw", "make header_bytes one");
  const uint64_t bytes = file->size() - offset;
  if (bytes % size != 0)
    base::fail(ErrorKind::data, {}, "map_raw",
               "{} has {} bytes: expected a multiple of {}, a sample [{}] of {}, found {} more", raw.path.string(),
               bytes, size, fmt::join(raw.sample_shape, ", "), dtype_name(raw.dtype), bytes % size);
  std::vector<int64_t> shape{static_cast<int64_t>(bytes / size)};
  shape.insert(shape.end(), raw.sample_shape.begin(), raw.sample_shape.end());
  return tensor_in(file, offset, shape, raw.dtype);
}

Loader npy(const NpyFiles& files, const LoaderOptions& options) {
  check_can_skip(files.on_error, files.classes.has_value(), "npy", "classes", "sample");
  const at::Tensor data = map_npy(files.data);
  const at::Tensor target = files.target.empty() ? at::Tensor() : map_npy(files.target);
  if (data.dim() == 0)
    base::fail(ErrorKind::data, {}, "npy", "{} holds one number: expected [N, ...]", files.data.string());
  if (target.defined() && (target.dim() == 0 || target.size(0) != data.size(0)))
    base::fail(ErrorKind::data, {}, "npy", "{} has {} samples: expected {}, as in {}", files.target.string(),
               target.dim() == 0 ? 0 : target.size(0), data.size(0), files.data.string());
  if (data.size(0) == 0)
    base::fail(ErrorKind::data, {}, "npy", "{} has 0 samples: expected at least 1", files.data.string());
  if (files.classes) {
    if (!target.defined())
      base::fail(ErrorKind::usage, {}, "npy", "classes is {}, but target is not set", *files.classes);
    if (files.on_error == OnError::skip) return drop_broken_samples(data, target, files, options);
    check_labels(target, *files.classes, files.target, "npy");
  }
  return from_tensors(data, target, options);
}

}  // namespace accelerate::data
