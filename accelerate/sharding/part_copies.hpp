// SPDX-License-Identifier: Apache-2.0
// Private: copies of parts between the memory of the host and an accelerator, for cpu_offload.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::sharding {

/// Copies in each direction run on a stream of their own. The host does not wait for them until finish(). Parts on the
/// host are in pinned memory, which the host may neither write nor free before finish(), nor read if it is the target
/// of a copy. Not thread-safe.
class PartCopies {
 public:
  /// A part on the device while a collective reads it.
  struct Buffer {
    at::Tensor bytes{};                    ///< uint8, in the memory of the upload stream
    std::optional<c10::Event> last_use{};  ///< after the collective that read it last
    bool is_taken = false;
  };
  /// A collective that reads an uploaded part. Default-constructed: none.
  struct Gather {
    Buffer* buffer = nullptr;
    comm::Pending pending{};
    std::optional<c10::Event> started{};
  };
  using Collective = std::function<comm::Pending(const at::Tensor& part)>;

  /// \param device  Accelerator with an index.
  explicit PartCopies(c10::Device device);
  ~PartCopies();
  PartCopies(const PartCopies&) = delete;
  PartCopies& operator=(const PartCopies&) = delete;

  [[nodiscard]] c10::Device device() const { return device_; }
  /// Returns a copy of a flat tensor of the device in pinned memory. The host waits for it.
  [[nodiscard]] static at::Tensor to_host(const at::Tensor& values);

  /// Copies a part to a buffer and starts the collective when it is there. The current stream waits for neither.
  /// Usually two buffers exist: one is copied to while a collective reads the other.
  /// \param part        Pinned.
  /// \param collective  May write to memory with earlier uses on the current stream.
  [[nodiscard]] Gather start(const at::Tensor& part, const Collective& collective);
  /// Makes the current stream wait for the collective. \throws its error.
  void finish(Gather gather);
  /// Frees the buffers that no collective reads.
  void free_buffers();

  /// Starts the copy of a tensor of the device to pinned memory, after the work of the current stream.
  /// \param adds  If true, the values are added to those in the memory, on the device.
  void download(const at::Tensor& source, const at::Tensor& target, bool adds);

  /// The host waits for all copies.
  void finish();

 private:
  struct Download {
    at::Tensor source{};
    c10::Event copied;
  };
  [[nodiscard]] Buffer& take_buffer(size_t bytes);

  c10::Device device_;
  c10::Stream up_, down_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // the least recently used first
  std::deque<Download> downloads_;                // sources with memory, the oldest first
  bool is_pending_ = false;                       // a copy may not be complete
};

}  // namespace accelerate::sharding
