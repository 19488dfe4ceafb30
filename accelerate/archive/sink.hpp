// SPDX-License-Identifier: Apache-2.0
// Where a checkpoint's bytes go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::archive {

/// Takes bytes one after another: a file, memory, later a peer. Throws Error (io) where they cannot be taken.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(std::string_view bytes) = 0;
  [[nodiscard]] virtual uint64_t written() const = 0;
};

/// A new file, with the checksum of what was written.
class FileSink final : public Sink {
 public:
  /// operation   what the user called, for errors
  /// Throws Error (io) where it cannot be made, or is there already.
  FileSink(std::filesystem::path path, std::string_view operation);

  /// All of it, however many calls the system wants; throws Error (io) with what was written so far, "no space left"
  /// among others.
  void write(std::string_view bytes) override;
  [[nodiscard]] uint64_t written() const override { return written_; }
  [[nodiscard]] std::string checksum() const { return checksum_.text(); }

  /// On the disk, in spite of a loss of power, when it returns (durable), and closed. Not called: the file stays as it
  /// is.
  void finish(bool durable = true);

 private:
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_;
  std::string operation_;
  base::FileDescriptor file_;
  Checksum checksum_;
  uint64_t written_ = 0;
};

/// A string in memory.
class StringSink final : public Sink {
 public:
  void write(std::string_view bytes) override { text_ += bytes; }
  [[nodiscard]] uint64_t written() const override { return text_.size(); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace accelerate::archive
