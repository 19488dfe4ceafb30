// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/memory.hpp"

#include <ATen/ops/index_select.h>

namespace accelerate::data {
namespace {

class MemorySource final : public Source {
 public:
  MemorySource(at::Tensor data, at::Tensor target) : data_(std::move(data)), target_(std::move(target)) {}

  [[nodiscard]] int64_t size() const override { return data_.size(0); }

  [[nodiscard]] Batch read(const at::Tensor& indices) const override {
    return {.data = data_.index_select(0, indices),
            .target = target_.defined() ? target_.index_select(0, indices) : at::Tensor()};
  }

 private:
  at::Tensor data_;
  at::Tensor target_;
};

void check(const at::Tensor& tensor, std::string_view name) {
  if (!tensor.defined() || tensor.dim() == 0)
    base::fail(ErrorKind::usage, {}, "memory_source", "{} has no first dimension, must be [N, ...]", name);
  if (!tensor.is_cpu())
    base::fail(ErrorKind::usage, {}, "memory_source", "{} is on {}, must be on the CPU; batches are moved by prepare",
               name, tensor.device().str());
}

}  // namespace

namespace detail {

void RowCount::add(const LeafPath& path, const at::Tensor& tensor) {
  check(tensor, path.text().empty() ? "the tensor" : path.text());
  add(path, tensor.size(0));
}

void RowCount::add(const LeafPath& path, int64_t items) {
  if (rows_ < 0) {
    rows_ = items;
    first_ = path.text();
  } else if (items != rows_) {
    base::fail(ErrorKind::usage, {}, "memory_source", "{} has {} samples, {} {}; both must be [N, ...]", first_, rows_,
               path.text(), items);
  }
}

int64_t RowCount::rows() const {
  if (rows_ < 0)
    base::fail(ErrorKind::usage, {}, "memory_source", "nothing in the data has a first dimension, must be [N, ...]");
  return rows_;
}

}  // namespace detail

std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target) {
  check(data, "data");
  if (target.defined()) {
    check(target, "target");
    if (data.size(0) != target.size(0))
      base::fail(ErrorKind::usage, {}, "memory_source", "data has {} samples, target {}; both must be [N, ...]",
                 data.size(0), target.size(0));
  }
  return std::make_shared<MemorySource>(data.detach(), target.defined() ? target.detach() : target);
}

Loader from_tensors(at::Tensor data, at::Tensor target, const LoaderOptions& options) {
  return Loader(memory_source(std::move(data), std::move(target)), options);
}

}  // namespace accelerate::data
