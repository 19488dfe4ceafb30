// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/error_file.hpp"

#include <fcntl.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::base {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSecondNs = 1'000'000'000;

struct LastError {
  std::string path{};
  std::mutex mutex{};
  ErrorRecord note{};
  std::terminate_handler others = nullptr;
};

LastError* last_error = nullptr;  // never freed: it is read while the process ends

void write_error_record(const ErrorRecord& note) {
  const FileDescriptor file(open(last_error->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string text = to_json(note);
  [[maybe_unused]] const auto written = write(file.get(), text.data(), text.size());
}

ErrorRecord current_error_record(std::string_view text) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.text = std::string(text), .time_ns = std::chrono::nanoseconds(now).count()};
}

void write_last_error(int status, void* /*unused*/) noexcept {
  if (status == 0) return;
  try {
    const std::lock_guard lock(last_error->mutex);
    write_error_record(last_error->note);
  } catch (...) {  // out of memory: no error note is possible
  }
}

[[noreturn]] void write_and_terminate() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
    write_last_error(1, nullptr);
  } catch (const std::exception& error) {
    write_error_record(current_error_record(error.what()));
  } catch (...) {
    write_last_error(1, nullptr);
  }
  if (last_error->others != nullptr) last_error->others();
  std::abort();
}

void install_exit_handlers() {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  last_error = new LastError{.path = path};
  on_exit(write_last_error, nullptr);
  last_error->others = std::set_terminate(write_and_terminate);
}

int64_t seconds_of(const Json& timestamp) {
  if (timestamp.is_number()) return timestamp.get<int64_t>();
  const std::string text = timestamp.is_string() ? timestamp.get<std::string>() : "";
  int64_t seconds = 0;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return seconds;
}

/// A timestamp outside the range of the system clock, from a writer with another unit, is ignored.
int64_t time_of(const Json& timestamp) {
  int64_t time_ns = 0;
  return __builtin_mul_overflow(seconds_of(timestamp), kSecondNs, &time_ns) ? 0 : time_ns;
}

}  // namespace

std::string to_json(const ErrorRecord& note) {
  const Json json{
      {"message",
       {{"message", note.text},
        {"extraInfo", {{"timestamp", std::to_string(note.time_ns / kSecondNs)}, {"time_ns", note.time_ns}}}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<ErrorRecord> parse_error_record(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("message")) return std::nullopt;
  const Json& message = parsed["message"];
  const Json& holder = message.is_object() ? message : parsed;
  const Json& details = message.is_object() ? message.value("extraInfo", Json::object()) : parsed;
  if (!holder.contains("message") || !holder["message"].is_string()) return std::nullopt;
  ErrorRecord note{.text = holder["message"].get<std::string>()};
  if (details.is_object() && details.contains("timestamp")) note.time_ns = time_of(details["timestamp"]);
  if (details.is_object() && details.contains("time_ns") && details["time_ns"].is_number_integer()) {
    note.time_ns = details["time_ns"].get<int64_t>();
  }
  return note.text.empty() ? std::nullopt : std::optional(note);
}

void remember_error(std::string_view text) noexcept {
  try {
    static std::once_flag once;
    std::call_once(once, install_exit_handlers);
    if (last_error == nullptr) return;
    auto note = current_error_record(text);
    const std::lock_guard lock(last_error->mutex);
    last_error->note = std::move(note);
  } catch (...) {  // no memory to store the text
  }
}

}  // namespace accelerate::base
