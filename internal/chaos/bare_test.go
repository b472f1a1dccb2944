package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"

	"symmem"
	"symmem/internal/launch"
)

// place is which rank of which world a process is that no launcher has started.
type place struct {
	Rank, Size int
	Store      string
}

// placed adds the place of this process to options, if it was not started by the launcher.
func placed(o symmem.Options) (symmem.Options, error) {
	text := os.Getenv(placeVariable)
	if text == "" {
		return o, nil
	}
	var p place
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return o, err
	}
	o.Rank, o.Size, o.Store = p.Rank, p.Size, p.Store
	return o, nil
}

// runBare is launch.Run without what the launcher does for ranks: no store, and nobody who tells
// them about ends.
func (j *job) runBare(ctx context.Context, s launch.Spec) (launch.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, errs := &wholeLines{to: s.Stdout.Write}, &wholeLines{to: s.Stderr.Write}
	processes := make([]*exec.Cmd, s.Ranks)
	for r := range processes {
		p, err := json.Marshal(place{r, s.Ranks, "unix:@" + j.store()})
		if err != nil {
			return launch.Result{}, err
		}
		c := exec.CommandContext(ctx, s.Command[0])
		c.Env = append(slices.Clone(s.Env), placeVariable+"="+string(p), fmt.Sprintf("RANK=%d", r))
		c.Stdout, c.Stderr = out.writer(), errs.writer()
		processes[r] = c
	}
	defer func() {
		cancel()
		for _, c := range processes {
			if c.Process != nil && c.ProcessState == nil {
				_ = c.Wait()
			}
		}
	}()
	for _, c := range processes {
		if err := c.Start(); err != nil {
			return launch.Result{}, err
		}
	}
	ended := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() { passOn(s.Signals, processes, ended) })
	var result launch.Result
	for r, c := range processes {
		// How it ended is read from its state.
		_ = c.Wait()
		status, _ := c.ProcessState.Sys().(syscall.WaitStatus)
		e := launch.Exit{Rank: r, PID: c.Process.Pid, Code: c.ProcessState.ExitCode()}
		if status.Signaled() {
			e.Signal, e.Code = status.Signal(), 128+int(status.Signal())
		}
		result.Exits = append(result.Exits, e)
	}
	close(ended)
	passing.Wait()
	return result, ctx.Err()
}

// passOn sends a signal that comes to all processes.
func passOn(signals <-chan os.Signal, processes []*exec.Cmd, ended <-chan struct{}) {
	select {
	case s := <-signals:
		for _, c := range processes {
			// It fails for one that has ended.
			_ = c.Process.Signal(s)
		}
	case <-ended:
	}
}

// wholeLines passes what several processes write on in whole lines, one after the other.
type wholeLines struct {
	mu sync.Mutex
	to func([]byte) (int, error) // called with mu held
}

// writer is where one process writes to.
func (w *wholeLines) writer() *lineWriter { return &lineWriter{lines: w} }

type lineWriter struct {
	lines *wholeLines
	rest  []byte // of a line that is not whole
}

func (w *lineWriter) Write(text []byte) (int, error) {
	w.rest = append(w.rest, text...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	if end == 0 {
		return len(text), nil
	}
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	_, err := w.lines.to(w.rest[:end])
	w.rest = append(w.rest[:0], w.rest[end:]...)
	return len(text), err
}

// store is the name of the socket of the store that rank 0 serves.
func (j *job) store() string { return "symmem-chaos-" + j.id }
