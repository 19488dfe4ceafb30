// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/memory.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "accelerate/data/workers.hpp"
#include "accelerate/device/upload.hpp"

namespace accelerate::data {
namespace {

void check_tensor(const at::Tensor& tensor, std::string_view name) {
  if (!tensor.defined() || tensor.dim() == 0)
    base::fail(ErrorKind::usage, {}, "memory_source", "{} has no first dimension, must be [N, ...]", name);
  if (!tensor.is_cpu())
    base::fail(ErrorKind::usage, {}, "memory_source", "{} is on {}, must be on the CPU; batches are moved by prepare",
               name, tensor.device().str());
}

}  // namespace

namespace detail {

void CommonRowCount::add(const LeafPath& path, const at::Tensor& tensor) {
  check_tensor(tensor, path.text().empty() ? "the tensor" : path.text());
  add(path, tensor.size(0));
}

void CommonRowCount::add(const LeafPath& path, int64_t items) {
  if (rows_ < 0) {
    rows_ = items;
    first_ = path.text();
  } else if (items != rows_) {
    base::fail(ErrorKind::usage, {}, "memory_source", "{} has {} samples, {} {}; both must be [N, ...]", first_, rows_,
               path.text(), items);
  }
}

int64_t CommonRowCount::rows() const {
  if (rows_ < 0)
    base::fail(ErrorKind::usage, {}, "memory_source", "nothing in the data has a first dimension, must be [N, ...]");
  return rows_;
}

struct Residence::Lane {
  explicit Lane(c10::Device device) : lane(device) {}
  std::mutex mutex;
  device::UploadStream lane;
};

Residence::Residence(c10::Device device) : device_(device), lane_(std::make_unique<Lane>(device)) {}

Residence::~Residence() = default;

at::Tensor Residence::move_in(const at::Tensor& tensor) try {
  bytes_ += static_cast<int64_t>(tensor.nbytes());
  return tensor.to(device_);
} catch (const c10::OutOfMemoryError& error) {
  base::fail(ErrorKind::device, {}, "memory_source",
             "{} bytes of data do not fit on {} ({}); keep them on the CPU: prepare() copies each batch one step ahead",
             bytes_, device_.str(), error.what_without_backtrace());
}

at::Tensor Residence::numbers(const at::Tensor& indices) {
  if (get_worker_info())
    base::fail(ErrorKind::usage, {}, "memory_source",
               "the data are on {} and read by a worker; num_workers must be 0 where they are gathered on the device",
               device_.str());
  const std::lock_guard lock(lane_->mutex);
  auto upload = lane_->lane.begin({indices});
  upload.arrive();
  return upload.take(indices);
}

std::shared_ptr<Residence> residence_on(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return std::make_shared<Residence>(device.has_index() ? device
                                                        : c10::impl::VirtualGuardImpl(device.type()).getDevice());
}

namespace {

/// \throws Error (usage) if data has no rows, or if both have different N.
Batch checked(const at::Tensor& data, const at::Tensor& target) {
  check_tensor(data, "data");
  if (target.defined()) {
    check_tensor(target, "target");
    if (data.size(0) != target.size(0))
      base::fail(ErrorKind::usage, {}, "memory_source", "data has {} samples, target {}; both must be [N, ...]",
                 data.size(0), target.size(0));
  }
  return {.data = data.detach(), .target = target.defined() ? target.detach() : target};
}

}  // namespace
}  // namespace detail

std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target) {
  return memory_source(std::move(data), std::move(target), at::kCPU);
}

std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target, c10::Device device) {
  const int64_t rows = data.defined() && data.dim() > 0 ? data.size(0) : 0;
  return std::make_shared<detail::MemoryTree<Batch>>(detail::checked(data, target), rows, detail::residence_on(device));
}

std::shared_ptr<const Source> memory_source(Batch batch) { return memory_source(std::move(batch), at::kCPU); }

std::shared_ptr<const Source> memory_source(Batch batch, c10::Device device) {
  return memory_source(std::move(batch.data), std::move(batch.target), device);
}

Loader from_tensors(at::Tensor data, at::Tensor target, const LoaderOptions& options) {
  return Loader(memory_source(std::move(data), std::move(target)), options);
}

Loader from_tensors(Batch batch, const LoaderOptions& options) {
  return Loader(memory_source(std::move(batch)), options);
}

}  // namespace accelerate::data
