package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/sys"
	"symmem/internal/sys/systest"
)

// longRun is a run of symmem verify that takes more than a minute.
type longRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *bufio.Reader
	stdout bytes.Buffer
	ranks  map[int]int // pids by rank
	store  string      // name of the store's socket
}

const longRanks = 3

// startLongRun starts a longRun, and returns after 100 steps.
func startLongRun(t *testing.T) *longRun {
	t.Helper()
	r := &longRun{t: t, ranks: map[int]int{}}
	r.cmd = systest.Command(t, systest.Patience, symmemBinary(t), "verify", "--cases=1", "--size=64Ki",
		"--ranks="+strconv.Itoa(longRanks), "--rounds=100000")
	r.cmd.Env = append(os.Environ(), progressVariable+"=lines")
	r.cmd.Stdout = &r.stdout
	stderr, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	r.stderr = bufio.NewReader(stderr)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}

	for done := 0; done < 100; {
		line, err := r.stderr.ReadString('\n')
		if n, scanErr := fmt.Sscanf(line, progressPrefix+"%d", &done); n != 1 {
			t.Fatalf("got the line %q (%v, %v), want progress", line, err, scanErr)
		}
	}

	r.findRanks()
	return r
}

func (l *longRun) findRanks() {
	l.t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		l.t.Fatal(err)
	}

	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if parentOf(pid) != l.cmd.Process.Pid {
			continue
		}

		env := environOf(pid)
		rank, err := strconv.Atoi(env["RANK"])
		if err != nil {
			l.t.Fatalf("process %d: RANK = %q, want a number", pid, env["RANK"])
		}

		l.ranks[rank], l.store = pid, strings.TrimPrefix(env["SYMMEM_STORE"], "unix:")
	}

	if len(l.ranks) != longRanks || !strings.HasPrefix(l.store, "@symmem-run-") {
		l.t.Fatalf("got ranks %v with store %q, want %d ranks", l.ranks, l.store, longRanks)
	}
}

// parentOf returns the id of a process's parent, or 0 if the process has exited.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}

	// The state and the parent follow the process's name, which is in parentheses and may contain
	// any character.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

func environOf(pid int) map[string]string {
	env := map[string]string{}
	all, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for _, entry := range strings.Split(string(all), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}

	return env
}

// wait waits until the command exits. It returns the exit code and the rest of standard error
// without progress lines.
func (l *longRun) wait() (code int, stderr string) {
	l.t.Helper()
	rest, err := io.ReadAll(l.stderr)
	if err != nil {
		l.t.Fatal(err)
	}

	_ = l.cmd.Wait() // the caller checks the exit code
	for line := range strings.Lines(string(rest)) {
		if !strings.HasPrefix(line, progressPrefix) {
			stderr += line
		}
	}

	l.checkCleanup()
	return l.cmd.ProcessState.ExitCode(), stderr
}

func (l *longRun) checkCleanup() {
	l.t.Helper()
	for rank, pid := range l.ranks {
		if env := environOf(pid); env["SYMMEM_STORE"] == "unix:"+l.store {
			l.t.Errorf("rank %d, process %d, is still running", rank, pid)
		}
	}

	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		l.t.Fatal(err)
	}

	if bytes.Contains(sockets, []byte(l.store)) {
		l.t.Errorf("the socket %s remains", l.store)
	}

	if files, _ := filepath.Glob("/dev/shm/*symmem*"); len(files) > 0 {
		l.t.Errorf("files remain: %v", files)
	}
}

func TestSignalEndsAllRanks(t *testing.T) {
	for _, s := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	} {
		t.Run(s.String(), func(t *testing.T) {
			r := startLongRun(t)
			if err := r.cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}

			if code, stderr := r.wait(); code != 128+int(s) {
				t.Errorf("exit code %d, want %d; standard error %q", code, 128+int(s), stderr)
			}
		})
	}
}

func TestErrorsNameKilledRank(t *testing.T) {
	for victim := range longRanks {
		t.Run(strconv.Itoa(victim), func(t *testing.T) {
			r := startLongRun(t)
			if err := syscall.Kill(r.ranks[victim], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}

			code, stderr := r.wait()
			if code != exitIncomplete {
				t.Errorf("exit code %d, want %d", code, exitIncomplete)
			}

			for rank := range longRanks {
				reported := strings.Contains(stderr, fmt.Sprintf("[rank %d] ", rank))
				if reported == (rank == victim) {
					t.Errorf("rank %d: error printed = %v, want %v", rank, reported, rank != victim)
				}
			}

			if n := strings.Count(stderr, fmt.Sprintf(": rank %d lost: ", victim)); n != 2 {
				t.Errorf("%d errors name rank %d, want 2:\n%s", n, victim, stderr)
			}

			table := strings.Contains(r.stdout.String(), "The run ended early: ")
			if table == (victim == 0) {
				t.Errorf("rank 0: report printed = %v, want %v", table, victim != 0)
			}
		})
	}
}

func TestRanksDoNotOutliveKilledLauncher(t *testing.T) {
	r := startLongRun(t)
	var ranks []*os.File
	for _, pid := range r.ranks {
		f, err := sys.Pidfd(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ranks = append(ranks, f)
	}

	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	// The kernel kills the ranks once the launcher has exited.
	for rank, f := range ranks {
		err := f.SetReadDeadline(time.Now().Add(20 * time.Second))
		if err = errors.Join(err, sys.AwaitEnd(f)); err != nil {
			t.Fatalf("rank %d is still running: %v", rank, err)
		}
	}

	r.wait()
}

// runUntilInterrupt starts a command, interrupts it once a line of its output contains text, and
// returns the whole output.
func runUntilInterrupt(t *testing.T, text string, args ...string) (output string) {
	t.Helper()
	cmd := systest.Command(t, systest.Patience, symmemBinary(t), args...)
	cmd.Env = append(os.Environ(), progressVariable+"=lines")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	lines, sent := bufio.NewReader(out), false
	for {
		line, err := lines.ReadString('\n')
		if output += line; err != nil {
			break
		}

		if !sent && strings.Contains(line, text) {
			sent = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}

	_ = cmd.Wait() // the caller checks the output
	if code := cmd.ProcessState.ExitCode(); !sent || code != 128+int(syscall.SIGINT) {
		t.Errorf("interrupted = %v, exit code %d; want true, %d", sent, code,
			128+int(syscall.SIGINT))
	}

	return output
}

func TestInterruptReportsResultsSoFar(t *testing.T) {
	for _, c := range []struct{ name, command, trigger, want string }{
		{
			"random programs", "verify --for=10m --max-bytes=64K", "round 3: ", "no wrong element",
		},
		{
			"random programs for machines", "verify --for=10m --json --max-bytes=64K", "round 3: ",
			`"wrong":0,`,
		},
		{
			"cases", "verify --cases=1 --size=1Mi --rounds=2000", progressPrefix,
			"The run ended early: ",
		},
		{
			// The first row takes milliseconds, but all rows take minutes.
			"a bench", "bench collective --unbound --batch=1ms --batches=3 --worlds=1", "all_reduce",
			"# round trip: ",
		},
		{
			// The first operation takes a second, but all operations take many.
			"a table of paths",
			"tune --dry-run --unbound --batch=1ms --batches=3 --max=2M --ops=all_reduce,all_gather," +
				"reduce_scatter,broadcast,reduce,alltoall",
			"measuring all_gather", "written: nothing",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(strings.Fields(c.command), "--backend=host", "--ranks=2")
			if out := runUntilInterrupt(t, c.trigger, args...); !strings.Contains(out, c.want) {
				t.Errorf("the output does not contain %q:\n%.3000s", c.want, out)
			}
		})
	}
}
