// SPDX-License-Identifier: Apache-2.0
// Destinations of a checkpoint's bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::archive {

/// A destination of bytes: a file or memory.
/// \throws Error (io) if bytes cannot be written.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(std::string_view bytes) = 0;
  [[nodiscard]] virtual uint64_t written() const = 0;
};

/// A new file with a checksum of the written bytes.
class FileSink final : public Sink {
 public:
  /// \param operation  Name of the user's call for errors.
  /// \throws Error (io) if the file cannot be created or exists already.
  FileSink(std::filesystem::path path, std::string_view operation);

  /// Writes the bytes in pieces of 2 MiB; the last incomplete piece stays in memory until the next call or finish().
  /// \throws Error (io) with the number of bytes written so far, for example "no space left".
  void write(std::string_view bytes) override;
  [[nodiscard]] uint64_t written() const override { return written_; }
  [[nodiscard]] std::string checksum() const { return checksum_.text(); }

  /// Writes the rest and closes the file. If `durable`, its content is first flushed to disk and survives a power
  /// failure. Without this call the file lacks the rest.
  /// \throws as write() does.
  void finish(bool durable = true);

 private:
  void store(std::string_view bytes);
  void store_pending();
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_;
  std::string operation_;
  base::FileDescriptor file_;
  Checksum checksum_;
  std::string pending_;   ///< the incomplete piece
  uint64_t written_ = 0;  ///< bytes that write() received
  uint64_t stored_ = 0;   ///< bytes in the file
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
