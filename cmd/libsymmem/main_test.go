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

// built is what all tests of this package use: the library, the program in C that drives it, and
// the command that starts its ranks.
type built struct{ library, drive, command string }

var building struct {
	once   sync.Once
	folder string
	built  built
	err    error
}

func TestMain(m *testing.M) {
	status := m.Run()
	if building.folder != "" {
		_ = os.RemoveAll(building.folder)
	}
	os.Exit(status)
}

// build compiles everything, once.
func build(t *testing.T) built {
	t.Helper()
	building.once.Do(func() {
		if building.folder, building.err = os.MkdirTemp("", "libsymmem"); building.err != nil {
			return
		}
		b := built{
			library: filepath.Join(building.folder, "libsymmem.so"),
			drive:   filepath.Join(building.folder, "drive"),
			command: filepath.Join(building.folder, "symmem"),
		}
		sources, _ := filepath.Glob("testdata/*.c")
		compile := append([]string{
			"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-o", b.drive,
		}, sources...)
		for _, c := range []*exec.Cmd{
			exec.Command("./build.sh", b.library),
			exec.Command("go", "build", "-o", b.command, "symmem/cmd/symmem"),
			exec.Command("gcc", append(compile, b.library, "-lpthread", "-ldl",
				"-Wl,-rpath,"+building.folder)...),
		} {
			if out, err := c.CombinedOutput(); err != nil {
				building.err = fmt.Errorf("%v: %w\n%s", c.Args, err, out)
				return
			}
		}
		building.built = b
	})
	if building.err != nil {
		t.Fatal(building.err)
	}
	return building.built
}

// deadline ends a program that hangs: nothing here takes a tenth of it.
const deadline = 100 * time.Second

// drive runs a scenario as so many ranks. Every rank must end with code 0 and say that it is done.
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
	sentence, scenario string
	ranks              []int
	// done is how many ranks come to their end.
	done func(ranks int) int
}{
	{
		"sums are right on every path, and words and windows tell of memory", "sums",
		[]int{1, 2, 4},
		all,
	},
	{"messages have tags and sources, and a forgotten one is named", "messages", []int{2, 4}, all},
	{
		"parts of any size go to all ranks, and splits that differ are named", "splits",
		[]int{1, 2, 4},
		all,
	},
	{"groups are named by their ranks, and handles do not come back", "groups", []int{2, 4}, all},
	{
		"PyTorch's segments share windows, and pools have functions of their own", "pools",
		[]int{1, 2},
		all,
	},
	{
		"what is new in one pool is registered, or ranks are told that they differ", "pending",
		[]int{1, 2, 4},
		all,
	},
	{"misuse is refused, and hurts nothing", "misuse", []int{1, 2}, all},
	{"a panic is an error, and hurts nothing", "panics", []int{1, 2}, all},
	{"frees in another order are the same history", "freed-order", []int{2, 4}, all},
	{"ranks that differ are told the lines of both", "diverge", []int{2, 4}, all},
	{
		"buffers at other places are found out before a sum, with the lines", "mismatch",
		[]int{2, 4},
		all,
	},
	{"a rank that does not come is named", "late", []int{2, 4}, all},
	{"a rank that has ended is named", "lost", []int{2, 4}, allButOne},
	{"a child of fork is refused everything, and the parent goes on", "forks", []int{2}, all},
	{
		"a thread allocates with a lock of its own, whatever other ranks do", "locked",
		[]int{1, 2},
		all,
	},
	{"threads allocate at once, and have errors of their own", "threads", []int{2}, all},
	{"handlers of the program get their signals, also in a storm", "signals", []int{2}, all},
	{"a process exits with live buffers", "exit-live", []int{2}, all},
	{"a process exits while a thread of it waits", "exit-waiting", []int{2, 4}, all},
	{"a process opens again, with variables that are new", "reopen", []int{2}, all},
}

func all(ranks int) int       { return ranks }
func allButOne(ranks int) int { return ranks - 1 }

func TestAProgramInC(t *testing.T) {
	for _, s := range scenarios {
		for _, ranks := range s.ranks {
			t.Run(fmt.Sprintf("%s, on %d", s.sentence, ranks), func(t *testing.T) {
				out := drive(t, ranks, s.scenario)
				if got := strings.Count(out, s.scenario+" is done"); got != s.done(ranks) {
					t.Errorf("%d ranks came to the end, want %d:\n%s", got, s.done(ranks), out)
				}
			})
		}
	}
}

// TestAChildOfForkKeepsNoConnection: where it kept that of rank 1 to the store, rank 0 would wait
// in its close for as long as the child lives.
func TestAChildOfForkKeepsNoConnection(t *testing.T) {
	b := build(t)
	input, child, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close() // which ends the child
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

func TestAProgramInCOnTheSoftwareGPU(t *testing.T) {
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ sentence, scenario string }{
		{"SGLang's symbols register with several communicators, once ranks agree", "plug"},
		{"a communicator of another library takes part in a group", "attach"},
		{"collectives become a part of the owner's capture", "capture"},
		{"rows are summed, added and normalized in one", "norm"},
	} {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s, on %d", s.sentence, ranks), func(t *testing.T) {
				out := drive(t, ranks, s.scenario, "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl,
					"DRIVE_DIR="+t.TempDir())
				if got := strings.Count(out, s.scenario+" is done"); got != ranks {
					t.Errorf("%d ranks came to the end:\n%s", got, out)
				}
			})
		}
	}
}

func TestCallsAreQuick(t *testing.T) {
	t.Log("\n" + drive(t, 1, "speed"))
}
