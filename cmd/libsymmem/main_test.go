//go:build cgo

package main_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// paths holds the paths of the library, the C program that tests it, and the symmem command.
type paths struct{ library, drive, command string }

var binaries struct {
	once   sync.Once
	folder string
	paths  paths
	err    error
}

func TestMain(m *testing.M) {
	status := m.Run()
	if binaries.folder != "" {
		_ = os.RemoveAll(binaries.folder)
	}
	os.Exit(status)
}

// build returns the paths of the binaries, which the first call compiles.
func build(t *testing.T) paths {
	t.Helper()
	binaries.once.Do(func() {
		if binaries.folder, binaries.err = os.MkdirTemp("", "libsymmem"); binaries.err != nil {
			return
		}
		b := paths{
			library: filepath.Join(binaries.folder, "libsymmem.so"),
			drive:   filepath.Join(binaries.folder, "drive"),
			command: filepath.Join(binaries.folder, "symmem"),
		}
		sources, _ := filepath.Glob("testdata/*.c")
		compile := append([]string{
			"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-o", b.drive,
		}, sources...)
		for _, c := range []*exec.Cmd{
			exec.Command("./build.sh", b.library),
			exec.Command("go", "build", "-o", b.command, "symmem/cmd/symmem"),
			exec.Command("gcc", append(compile, b.library, "-lpthread", "-ldl",
				"-Wl,-rpath,"+binaries.folder)...),
		} {
			if out, err := c.CombinedOutput(); err != nil {
				binaries.err = fmt.Errorf("%v: %w\n%s", c.Args, err, out)
				return
			}
		}
		binaries.paths = b
	})
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}
	return binaries.paths
}

// deadline is the time after which a program that hangs is killed. Every scenario takes less than a
// tenth of that time.
const deadline = 100 * time.Second

// drive runs a scenario on the given number of ranks, all of which must succeed, and returns their
// output.
func drive(t *testing.T, ranks int, scenario string, environment ...string) string {
	t.Helper()
	b := build(t)
	c := systest.Command(t, deadline, b.command, "launch", "-n", fmt.Sprint(ranks), "--", b.drive,
		scenario)
	c.Env = append(os.Environ(), "SYMMEM_ATTACH_EARLY_START=1")
	c.Env = append(c.Env, environment...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %d ranks: %v\n%s", scenario, ranks, err, out)
	}
	return string(out)
}

var scenarios = []struct {
	name, scenario string
	ranks          []int
	completes      func(ranks int) int // number of ranks that complete the scenario
}{
	{
		"sums are right on every path, and new memory changes the words and windows", "sums",
		[]int{1, 2, 4},
		all,
	},
	{
		"messages have tags and sources, and an unmatched message is reported", "messages",
		[]int{2, 4},
		all,
	},
	{
		"all-to-all sends parts of any size, and splits that differ are reported", "splits",
		[]int{1, 2, 4},
		all,
	},
	{
		"operations have a root or parts of different sizes, and counts are compared", "rooted",
		[]int{1, 2, 4},
		all,
	},
	{
		"calls wait for their results on any thread, and the caller can end the wait", "waits",
		[]int{1, 2, 4},
		all,
	},
	{"groups are identified by name and ranks; handles are not reused", "groups", []int{2, 4}, all},
	{
		"PyTorch's segments share windows, and each pool has its own allocator functions", "pools",
		[]int{1, 2},
		all,
	},
	{
		"new memory of one pool is registered, and differences between ranks are reported", "pending",
		[]int{1, 2, 4},
		all,
	},
	{"misuse returns errors without side effects", "misuse", []int{1, 2}, all},
	{"a panic is returned as an error", "panics", []int{1, 2}, all},
	{"the order of frees does not affect the history", "freed-order", []int{2, 4}, all},
	{"a divergence error has the call sites of both sides", "diverge", []int{2, 4}, all},
	{
		"buffers at different places are detected before a sum, with call sites", "mismatch",
		[]int{2, 4},
		all,
	},
	{"a late rank is reported", "late", []int{2, 4}, all},
	{"a lost rank is reported", "lost", []int{2, 4}, allButOne},
	{"calls in a forked child fail, and the parent is not affected", "forks", []int{2}, all},
	{
		"a thread allocates while it holds a lock and other ranks wait", "locked",
		[]int{1, 2},
		all,
	},
	{"threads allocate concurrently, and each has its own last error", "threads", []int{2}, all},
	{"signal handlers of the program run, even under many signals", "signals", []int{2}, all},
	{"a process exits with live buffers", "exit-live", []int{2}, all},
	{"a process exits while one of its threads waits", "exit-waiting", []int{2, 4}, all},
	{"worlds are opened and closed one by one, some by two ranks only", "worlds", []int{2, 4}, all},
	{"a lost rank makes only the worlds that it belongs to fail", "worlds-lost", []int{3}, allButOne},
	{"a late rank makes the group with the short timeout fail", "timeouts", []int{2}, all},
	{"a process reopens the library with new environment variables", "reopen", []int{2}, all},
}

func all(ranks int) int       { return ranks }
func allButOne(ranks int) int { return ranks - 1 }

func TestCProgram(t *testing.T) {
	for _, s := range scenarios {
		for _, ranks := range s.ranks {
			t.Run(fmt.Sprintf("%s, on %d", s.name, ranks), func(t *testing.T) {
				out := drive(t, ranks, s.scenario)
				if got := strings.Count(out, s.scenario+" is done"); got != s.completes(ranks) {
					t.Errorf("%d ranks completed, want %d:\n%s", got, s.completes(ranks), out)
				}
			})
		}
	}
}

// TestForkedChildClosesConnections forks a child of rank 1. If the child kept its connection to the
// store open, rank 0 would wait in symmem_close until the child exits.
func TestForkedChildClosesConnections(t *testing.T) {
	b := build(t)
	input, child, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close() // the child exits when its input ends
	store := "DRIVE_STORE=unix:@drive-" + rand.Text()
	ranks := make([]*exec.Cmd, 2)
	for rank := range ranks {
		c := systest.Command(t, deadline, b.drive, "left-child")
		c.Env = append(os.Environ(), store, fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=2")
		c.Stdin, c.Stdout, c.Stderr = input, os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ranks[rank] = c
	}
	input.Close()
	for rank, c := range ranks {
		if err := c.Wait(); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestCProgramOnSoftwareGPU(t *testing.T) {
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ name, scenario string }{
		{"SGLang's functions register with several communicators", "plug"},
		{"a communicator of another library is attached to a group", "attach"},
		{"collectives are captured in a foreign graph", "capture"},
		{"worlds share a GPU and a stream, and one closes", "gpu-worlds"},
		{"all-reduce, residual and RMSNorm are fused", "norm"},
	} {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s, on %d", s.name, ranks), func(t *testing.T) {
				out := drive(t, ranks, s.scenario, "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl,
					"DRIVE_DIR="+t.TempDir())
				if got := strings.Count(out, s.scenario+" is done"); got != ranks {
					t.Errorf("%d ranks completed, want %d:\n%s", got, ranks, out)
				}
			})
		}
	}
}

func TestCallSpeed(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Log("\n" + drive(t, ranks, "speed"))
	}
}
