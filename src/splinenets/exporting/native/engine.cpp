// Inference of SplineNets, one image at a time, without a framework: a program of two dozen kinds of steps is executed in
// one call.

#include "splinenets.h"

#include "file.h"
#include "layers.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

namespace {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Wait for a moment in which the processor does nothing else: falling asleep and waking up takes longer than most steps.
// False if it did not happen within half a millisecond.
template <class F>
bool spin(F happened) {
  for (int i = 0; i < 2048; i++)
    if (happened()) return true;
  auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(500);
  do {
    for (int i = 0; i < 64; i++) {
      if (happened()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// The threads that work on the same program, and where they wait for each other.
struct Team {
  int size;
  std::atomic<int64_t> arrived{0}, round{0};

  void wait() {
    if (size == 1) return;
    int64_t now = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(now + 1, std::memory_order_release);
      return;
    }
    while (!spin([&] { return round.load(std::memory_order_acquire) != now; })) std::this_thread::yield();
  }
};

// What a thread's memory holds from the call before: what the network was told, and among how many threads.
struct Before {
  int threads = 0;
  std::vector<float> told;

  // Whether it is the same again; it is remembered. Numbers are compared bit by bit.
  bool again(int size, const float* now, int64_t count) {
    const size_t bytes = size_t(count) * sizeof(float);
    if (threads == size && (!count || !std::memcmp(told.data(), now, bytes))) return true;
    threads = size, told.assign(now, now + count);
    return false;
  }
};

}  // namespace

struct splinenets_network {
  File file;
  Bases bases;
  Image image{};
  int64_t outputs = 0;
  std::vector<Memory> memory;
  std::vector<float*> arenas;
  std::vector<Before> before;
  Team team;
  std::vector<std::thread> helpers;
  std::mutex door;
  std::condition_variable bell;
  std::atomic<int64_t> call{0};
  std::atomic<int> busy{0};
  bool over = false;
  Sample first{};
  int64_t batch = 0;

  splinenets_network(const unsigned char* content, size_t length, int threads) : file(content, length) {
    for (int64_t i = 0; i < file.content.count; i++) {
      const Step& step = file.content.steps[i];
      if (step.kind == INPUT) image = step.output;
      if (step.kind == OUTPUT) outputs = step.input.channels;
    }
    team.size = threads;
    for (int t = 0; t < threads; t++) {
      memory.push_back(zeros(file.content.arena * int64_t(sizeof(float))));
      arenas.push_back(reinterpret_cast<float*>(memory.back().get()));
      before.emplace_back();
    }
    try {
      for (int t = 1; t < threads; t++) helpers.emplace_back(&splinenets_network::help, this, t);
    } catch (...) {
      stop();
      throw;
    }
  }

  ~splinenets_network() { stop(); }

  Sample sample(int64_t n) const {
    const int64_t size = image.channels * image.height * image.width;
    return {first.image + n * size, first.told + n * file.content.told_count, first.outputs + n * outputs};
  }

  // One image is shared by all threads, step by step; of several, each thread takes its own.
  void work(int me) {
    if (batch == 1) return work(me, {file.content, bases, arenas.data(), me, team.size}, first);
    const Worker alone{file.content, bases, arenas.data() + me, 0, 1};
    for (int64_t n = batch * me / team.size; n < batch * (me + 1) / team.size; n++) work(me, alone, sample(n));
  }

  void work(int me, const Worker& worker, const Sample& sample) {
    const Content& content = file.content;
    const bool again = before[me].again(worker.size, sample.told, content.told_count);
    for (int64_t i = 0; i < content.count; i++) {
      const Step& step = content.steps[i];
      if (again && step.kept) continue;
      if (i + 1 < content.count && mixes_for(step, content.steps[i + 1]))
        convolve_mixed(worker, step, content.steps[++i]);
      else
        ::run(worker, step, sample);
      if (worker.size > 1 && !everyone(content.steps[i].kind)) team.wait();
    }
  }

  void help(int me) {
    for (int64_t seen = 0;;) {
      const auto called = [&] { return call.load(std::memory_order_acquire) != seen; };
      if (!spin(called)) {
        std::unique_lock<std::mutex> lock(door);
        bell.wait(lock, called);
      }
      seen = call.load(std::memory_order_acquire);
      if (over) return;
      work(me);
      busy.fetch_sub(1, std::memory_order_release);
    }
  }

  bool allows(const float* told, int64_t count) const {
    for (int64_t i = 0; i < count * file.content.told_count; i++)
      if (!file.content.told[i % file.content.told_count].allows(told[i])) return false;
    return true;
  }

  void run(const Sample& samples, int64_t count) {
    first = samples, batch = count;
    busy.store(team.size - 1, std::memory_order_relaxed);
    start();
    work(0);
    while (!spin([&] { return busy.load(std::memory_order_acquire) == 0; })) std::this_thread::yield();
  }

  void start() {
    if (helpers.empty()) return;
    {
      std::lock_guard<std::mutex> lock(door);
      call.fetch_add(1, std::memory_order_release);
    }
    bell.notify_all();
  }

  void stop() {
    over = true;
    start();
    for (std::thread& helper : helpers) helper.join();
    helpers.clear();
  }
};

extern "C" {

// Not part of the interface: what a program must look like, for whoever writes one.
const char* splinenets_layout() {
  static const std::string text = layout();
  return text.c_str();
}

splinenets_network* splinenets_open(const void* content, size_t length, int threads, char* message, size_t size) try {
  require(threads >= 1, "threads must be 1 or more");
  return new splinenets_network(static_cast<const unsigned char*>(content), length, threads);
} catch (const std::invalid_argument& error) {
  if (size) std::snprintf(message, size, "%s", error.what());
  return nullptr;
} catch (const std::exception&) {
  if (size) std::snprintf(message, size, "not enough memory or threads");
  return nullptr;
}

splinenets_network* splinenets_load(const char* path, int threads, char* message, size_t size) try {
  std::vector<char> content;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), std::fclose);
  require(file != nullptr, "it cannot be opened");
  char part[1 << 16];
  for (size_t read; (read = std::fread(part, 1, sizeof part, file.get()));) content.insert(content.end(), part, part + read);
  return splinenets_open(content.data(), content.size(), threads, message, size);
} catch (const std::exception& error) {
  if (size) std::snprintf(message, size, "%s", error.what());
  return nullptr;
}

void splinenets_describe(const splinenets_network* network, splinenets_description* to) {
  const Image& image = network->image;
  *to = {image.channels,
         image.height,
         image.width,
         network->outputs,
         network->file.content.told_count,
         network->file.metadata.c_str()};
}

splinenets_condition splinenets_condition_at(const splinenets_network* network, int64_t n) {
  const Content& content = network->file.content;
  if (n < 0 || n >= content.told_count) return {nullptr, 0, 0};
  return {content.told[n].name, content.told[n].low, content.told[n].high};
}

int splinenets_run(splinenets_network* network, const float* images, const float* conditions, float* outputs,
                   int64_t count) {
  if (count < 1) return 0;
  if (!network->allows(conditions, count)) return 1;
  network->run({images, conditions, outputs}, count);
  return 0;
}

void splinenets_free(splinenets_network* network) { delete network; }
}
