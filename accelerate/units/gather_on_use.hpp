// SPDX-License-Identifier: Apache-2.0
// Private to the library: lets a parameter's memory be absent until an operator uses the parameter.
//
// A parameter keeps its TensorImpl and StorageImpl; only the pointer in the StorageImpl changes. Its TensorImpl has one
// more dispatch key, which views inherit. A boxed fallback of that key runs before every operator that has the
// parameter or a view of it among its arguments, in forward, backward, TorchScript and on any thread. Operators on
// other tensors are not affected.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::units {

struct GatheredParameter;

/// Owner of the memory of parameters. Its functions are called by the thread that runs an operator.
class GatherOnUse {
 public:
  GatherOnUse() = default;
  GatherOnUse(const GatherOnUse&) = delete;
  GatherOnUse& operator=(const GatherOnUse&) = delete;
  virtual ~GatherOnUse() = default;

  /// Makes the memory available, until after_operator() of the same operator. An exception cancels the operator.
  /// \param writes  True if the operator writes to the parameter.
  virtual void before_operator(const GatheredParameter& parameter, bool writes) = 0;
  virtual void after_operator() noexcept = 0;

  /// If set, the operator's other arguments are copied to this device, and so are those of operators on its results.
  [[nodiscard]] virtual std::optional<c10::Device> execution_device() const { return std::nullopt; }

  /// True if an operator that writes to a parameter is an error, because its values are elsewhere.
  [[nodiscard]] virtual bool refuses_writes() const { return false; }
};

/// The parts of error texts that depend on the component. Each must remain valid.
struct MemoryErrors {
  std::string_view operation;
  std::string_view absent;         ///< after "parameter NAME ", for code that needs the memory and is no operator
  std::string_view without_owner;  ///< after "parameter NAME "
  std::string_view key_in_use;     ///< remedy if the dispatch key is in use, after "link one copy of this library, or "
};

/// A parameter and the owner of its memory. The storage of the parameter refers to it.
struct GatheredParameter {
  std::weak_ptr<GatherOnUse> owner{};
  std::string name{};
  const MemoryErrors* errors = nullptr;
  at::Tensor memory{};  ///< kept alive as long as the parameter; undefined if the owner's memory is temporary
  size_t member = 0;    ///< number of the parameter within its owner
};

/// Makes operators on the parameter, and on views that are created from now on, call its owner.
/// \throws Error (environment) if another library in this process uses the dispatch key.
void enable_gather_on_use(const at::Tensor& parameter, const MemoryErrors& errors);
void disable_gather_on_use(const at::Tensor& parameter);

/// Sets the memory of a parameter's storage. If `memory` is null, every access that is not an operator, such as
/// data_ptr(), throws a c10::Error that names the parameter.
/// \param memory     Must remain valid until the next call for this storage.
/// \param parameter  If its owner no longer exists, operators throw Error (usage).
void set_storage_memory(const c10::Storage& storage, void* memory, std::shared_ptr<const GatheredParameter> parameter);
/// Sets the text of the c10::Error that device::refuse_data() causes for the parameter.
void set_absence_text(const c10::Storage& storage, const GatheredParameter& parameter);

/// Keeps the memory of parameters available during its lifetime, for code that reads them and is no operator. All ranks
/// hold the same parameters in the same order, because a gather is collective.
class [[nodiscard]] HeldMemory {
 public:
  /// \param tensors  Those without an owner of their memory are skipped.
  /// \throws Error as an operator on the parameters would.
  explicit HeldMemory(at::TensorList tensors);

 private:
  std::vector<std::shared_ptr<void>> owners_;  // the deleters release them
};

/// Gives the parameter memory of its own again.
/// \param values  A tensor with the parameter's strides and its own storage, which the parameter takes over.
void own_parameter_memory(const at::Tensor& parameter, const at::Tensor& values);
/// Moves the parameter into a flat tensor without a copy of its values. It keeps that tensor's storage alive.
/// \param offset  In elements.
void share_parameter_memory(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

/// \throws Error (usage) that names a parameter and states that the owner of its memory no longer exists.
[[noreturn]] void fail_without_owner(const std::string& name, const MemoryErrors& errors);

/// Returns false if the parameter shares its storage with other tensors, or does not fill it.
[[nodiscard]] bool fills_its_storage(const at::Tensor& parameter);
/// True if a unit owns the memory of the tensor, a parameter or a view of one.
[[nodiscard]] bool has_memory_owner(const at::Tensor& tensor);
/// True if that owner refuses operators that write to the tensor: the parameter is offloaded.
[[nodiscard]] bool is_offloaded(const at::Tensor& tensor);

}  // namespace accelerate::units
