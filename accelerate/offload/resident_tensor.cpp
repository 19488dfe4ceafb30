// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/resident_tensor.hpp"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>

#include "accelerate/deferred/deferred_tensor.hpp"
#include "accelerate/deferred/init_empty_weights.hpp"
#include "accelerate/offload/absent_tensor.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::offload {
namespace {

constexpr units::MemoryErrors kResidentErrors{.operation = "dispatch_model",
                                              .absent = "has no memory",
                                              .without_owner = "no longer exists",
                                              .key_in_use = "use one device"};

struct ResidentTensor final : units::GatherOnUse {
  void before_operator(const units::GatheredParameter&, bool) override {}
  void after_operator() noexcept override {}
  [[nodiscard]] std::optional<c10::Device> execution_device() const override { return values.device(); }

  units::GatheredParameter parameter{};
  at::Tensor values{};  // owns the memory
};

}  // namespace

void keep_on_device(const std::string& name, const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  deferred::materialize_tensor(tensor);
  const auto resident = std::make_shared<ResidentTensor>();
  resident->values = tensor.detach().to(device).contiguous();
  resident->parameter = {.owner = resident, .name = name, .errors = &kResidentErrors};
  units::enable_gather_on_use(tensor, kResidentErrors);  // may throw, so before the memory is taken
  take_memory(tensor, device);
  units::enable_gather_on_use(tensor, kResidentErrors);
  units::set_storage_memory(tensor.storage(), resident->values.mutable_data_ptr(),
                            std::shared_ptr<const units::GatheredParameter>(resident, &resident->parameter));
}

void move_to_device(const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  if (tensor.device() != device) set_values(tensor, tensor.detach().to(device));
}

}  // namespace accelerate::offload
