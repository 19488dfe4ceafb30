// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/progress.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <regex>
#include <stdexcept>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"

using namespace accelerate::tracking;
using accelerate::base::FileDescriptor;
using std::chrono::milliseconds;
using Lines = std::vector<std::string>;

namespace {

/// Returns the output so far; the descriptor is non-blocking.
std::string all_of(const FileDescriptor& from) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = ::read(from.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text;
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("pipe2");
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  FileDescriptor reader, writer;
};

/// A terminal of 60 columns.
struct Terminal {
  Terminal() : keyboard(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)) {
    if (!keyboard || ::grantpt(keyboard.get()) != 0 || ::unlockpt(keyboard.get()) != 0) throw std::runtime_error("pty");
    screen.reset(::open(::ptsname(keyboard.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    const winsize size{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
    if (!screen || ::ioctl(screen.get(), TIOCSWINSZ, &size) != 0) throw std::runtime_error("pty");
  }
  FileDescriptor keyboard, screen;
};

/// Replaces times and rates, which depend on the machine, by T and R.
std::string timeless(const std::string& text) {
  const std::string times = std::regex_replace(text, std::regex(R"(\d\d:\d\d<(\d\d:\d\d|\?))"), "T<T");
  return std::regex_replace(times, std::regex(R"(, +[0-9.?]+(it/s|s/it))"), ", R");
}

ProgressOptions quiet_on(int output) { return {.width = 60, .output = output}; }

struct Rows {
  explicit Rows(std::vector<int> given) : numbers(std::move(given)) {}
  [[nodiscard]] auto begin() { return numbers.begin(); }
  [[nodiscard]] auto end() { return numbers.end(); }
  std::vector<int> numbers;
};

}  // namespace

TEST_CASE("on a terminal the line is redrawn in place and stays at the end") {
  const Terminal terminal;
  {
    ProgressBar bar(
        {.description = "epoch 1", .total = 2, .interval = milliseconds(0), .output = terminal.screen.get()});
    bar.update();
    bar.set_postfix("loss={:.2f}", 0.25);
    bar.update();
  }
  const std::string shown = timeless(all_of(terminal.keyboard));
  const std::string erased = "\r\x1b[K";
  CHECK(shown.starts_with(erased + "epoch 1:   0%|"));
  CHECK(shown.find(erased + "epoch 1:  50%|") != std::string::npos);
  CHECK(shown.find("| 2/2 [T<T, R, loss=0.25]\r\n") ==
        shown.size() - std::string("| 2/2 [T<T, R, loss=0.25]\r\n").size());
}

TEST_CASE("a line fills the terminal's width and no more") {
  const Terminal terminal;
  { const ProgressBar bar({.total = 2, .leave = false, .output = terminal.screen.get()}); }
  const std::string shown = all_of(terminal.keyboard);
  const std::string first = shown.substr(4, shown.find('\r', 1) - 4);
  CHECK(first.ends_with("| 0/2 [00:00<?, ?it/s]"));
  CHECK(first.size() == 60);             // no progress yet: blanks
  CHECK(shown.ends_with("\r\x1b[K\r"));  // the bar is erased
}

TEST_CASE("a nested bar is drawn one row below and is removed at its end") {
  const Terminal terminal;
  const ProgressOptions options{.interval = milliseconds(0), .output = terminal.screen.get()};
  auto outer_options = options;
  outer_options.total = 1;
  ProgressBar outer(outer_options);
  (void)all_of(terminal.keyboard);
  for (int pass = 0; pass < 2; ++pass) {
    ProgressBar inner(options);
    CHECK(timeless(all_of(terminal.keyboard)) == "\r\n\r\x1b[K0it [00:00, R]\x1b[A");
    inner.finish();
    CHECK(all_of(terminal.keyboard) == "\r\n\r\x1b[K\x1b[A\r");
  }
  outer.finish();
  CHECK(all_of(terminal.keyboard).ends_with("\r\n"));
}

TEST_CASE("without a terminal there is one line at the end, and none for each step") {
  const Pipe pipe;
  {
    ProgressBar bar([&] {
      auto options = quiet_on(pipe.writer.get());
      options.total = 1000;
      options.description = "epoch";
      return options;
    }());
    for (int step = 0; step < 1000; ++step) bar.update();
    CHECK(all_of(pipe.reader).empty());
  }
  const std::string shown = timeless(all_of(pipe.reader));
  CHECK(shown.starts_with("epoch: 100%|"));
  CHECK(shown.ends_with("| 1000/1000 [T<T, R]\n"));
  CHECK(shown.find('\r') == std::string::npos);
  CHECK(std::count(shown.begin(), shown.end(), '\n') == 1);
}

TEST_CASE("without a terminal lines appear at intervals, and short inner bars print nothing") {
  const Pipe pipe;
  auto options = quiet_on(pipe.writer.get());
  {
    ProgressBar outer(options);
    { const ProgressBar inner(options); }
    CHECK(all_of(pipe.reader).empty());
  }
  (void)all_of(pipe.reader);
  options.line_interval = milliseconds(0);
  ProgressBar bar(options);
  bar.update();
  bar.update();
  CHECK(timeless(all_of(pipe.reader)).find("1it [") == 0);
}

TEST_CASE("without a terminal the last step has one line, for any line interval") {
  const Pipe pipe;
  auto options = quiet_on(pipe.writer.get());
  options.line_interval = milliseconds(0);
  options.total = 2;
  ProgressBar bar(options);
  bar.update();
  CHECK(timeless(all_of(pipe.reader)).ends_with("| 1/2 [T<T, R]\n"));
  bar.update();
  CHECK(all_of(pipe.reader).empty());
  bar.finish();
  const std::string end = timeless(all_of(pipe.reader));
  CHECK(end.starts_with("100%|"));
  CHECK(end.ends_with("| 2/2 [T<T, R]\n"));
  CHECK(std::count(end.begin(), end.end(), '\n') == 1);
}

TEST_CASE("a disabled bar prints nothing") {
  const Pipe pipe;
  auto options = quiet_on(pipe.writer.get());
  options.disable = true;
  options.line_interval = milliseconds(0);
  std::vector<int> numbers{1, 2, 3};
  for (int number : ProgressRange<std::vector<int>&>(numbers, options)) (void)number;
  CHECK(all_of(pipe.reader).empty());
}

TEST_CASE("the bar is redrawn at most once per interval") {
  const Terminal terminal;
  ProgressBar bar({.total = 100000, .interval = std::chrono::hours(1), .output = terminal.screen.get()});
  for (int step = 0; step < 100000; ++step) bar.update();
  const std::string shown = all_of(terminal.keyboard);
  CHECK(std::count(shown.begin(), shown.end(), '\r') == 1);  // only the first update
}

TEST_CASE("a range returns its elements by reference and has a size") {
  const Pipe pipe;
  std::vector<int> numbers{1, 2, 3};
  for (int& number : ProgressRange<std::vector<int>&>(numbers, quiet_on(pipe.writer.get()))) number *= 2;
  CHECK(numbers == std::vector<int>{2, 4, 6});
  CHECK(timeless(all_of(pipe.reader)).find("| 3/3 [T<T, R]\n") != std::string::npos);
  int sum = 0;
  for (const int number : ProgressRange<Rows>(Rows({1, 2}), quiet_on(pipe.writer.get()))) sum += number;
  CHECK(sum == 3);
  CHECK(all_of(pipe.reader).starts_with("2it ["));
  for (const int number : ProgressRange<std::vector<int>>({}, quiet_on(pipe.writer.get()))) sum += number;
  CHECK(all_of(pipe.reader).starts_with("0it ["));
}

TEST_CASE("a range of optional size has a total if its size is known") {
  struct Stream : std::vector<int> {
    std::optional<int64_t> batches;
    [[nodiscard]] std::optional<int64_t> size() const { return batches; }
  };
  const Pipe pipe;
  const auto shown = [&](std::optional<int64_t> size) {
    Stream stream{{1, 2}, size};
    for (const int number : ProgressRange<Stream&>(stream, quiet_on(pipe.writer.get()))) (void)number;
    return timeless(all_of(pipe.reader));
  };
  CHECK(shown(2).find("| 2/2 [T<T, R]\n") != std::string::npos);
  CHECK(shown(std::nullopt).starts_with("2it ["));
}

TEST_CASE("a range may be iterated again, end early or by an exception; each pass has its line") {
  const Pipe pipe;
  std::vector<int> numbers{1, 2, 3};
  {
    ProgressRange<std::vector<int>&> range(numbers, quiet_on(pipe.writer.get()));
    for (const int number : range) {
      range.set_postfix("number {}", number);
      if (number == 2) break;
    }
    CHECK(all_of(pipe.reader).empty());  // the bar does not know whether the pass has ended
    for (const int number : range) (void)number;
    const std::string both = timeless(all_of(pipe.reader));
    CHECK(both.find("| 1/3 [T<T, R, number 2]\n") != std::string::npos);
    CHECK(both.find("| 3/3 [T<T, R]\n") != std::string::npos);
  }
  CHECK(all_of(pipe.reader).empty());
  try {
    for (const int number : ProgressRange<std::vector<int>&>(numbers, quiet_on(pipe.writer.get()))) {
      if (number == 3) throw std::runtime_error("out");
    }
  } catch (const std::runtime_error&) {
  }
  CHECK(timeless(all_of(pipe.reader)).find("| 2/3 [T<T, R]\n") != std::string::npos);
}

TEST_CASE("a closed output stops nothing") {
  Pipe pipe;
  const int number = pipe.writer.get();
  auto options = quiet_on(number);
  options.line_interval = milliseconds(0);
  ProgressBar bar(options);
  pipe.writer.reset();
  for (int step = 0; step < 10; ++step) bar.update();
  bar.finish();
  CHECK(::fcntl(number, F_GETFD) == -1);
}
