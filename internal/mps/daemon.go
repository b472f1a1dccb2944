package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"symmem/internal/sys"
)

// PipeVariable names the folder in which a daemon listens, and logVariable that of its logs. An
// empty value of the first, or a folder without a daemon, keeps CUDA from the service.
const (
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable  = "CUDA_MPS_LOG_DIRECTORY"
)

// devices is what CUDA shows. A daemon that was started with it shows its clients those GPUs alone,
// counted from 0.
const devices = "CUDA_VISIBLE_DEVICES"

// program is NVIDIA's, which comes with the driver.
const program = "nvidia-cuda-mps-control"

// patience bounds the start of a daemon and its end.
const patience = 20 * time.Second

// Running reports whether processes with this environment may be clients of a daemon: one has
// listened there, and may have been killed since.
func Running(getenv func(string) string) bool {
	_, err := os.Stat(filepath.Join(cmp.Or(getenv(PipeVariable), "/tmp/nvidia-mps"), "control"))
	return err == nil
}

// Find returns the file of the program that runs daemons. The error says that there is none.
func Find() (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("finding NVIDIA's Multi-Process Service: %w", err)
	}
	return path, nil
}

// Daemon is a running daemon, which belongs to who started it. Its methods are not safe for
// concurrent use.
type Daemon struct {
	path   string
	folder string
	env    []string
	shown  bool
}

// Start starts a daemon in a folder of its own, for the GPUs that the environment shows. The
// context bounds the start alone.
func Start(ctx context.Context, env []string) (*Daemon, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "symmem-mps-")
	if err != nil {
		return nil, fmt.Errorf("starting the Multi-Process Service: %w", err)
	}
	d := &Daemon{path: path, folder: folder}
	d.shown = slices.ContainsFunc(env, func(entry string) bool {
		return strings.HasPrefix(entry, devices+"=")
	})
	d.env = append(without(env, PipeVariable, logVariable),
		PipeVariable+"="+folder, logVariable+"="+folder)
	if err := d.control(ctx, "", "-d"); err != nil {
		err = fmt.Errorf("starting the Multi-Process Service: %w", err)
		if d.process() == nil {
			return nil, errors.Join(err, os.RemoveAll(folder))
		}
		return nil, errors.Join(err, d.Close()) // it has started all the same
	}
	return d, nil
}

// control runs the program once. A daemon keeps the outputs that it was started with, so they are
// files and not pipes, which would be read to their ends.
func (d *Daemon) control(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	said, err := os.CreateTemp(d.folder, "said-")
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := exec.CommandContext(ctx, d.path, args...)
	cmd.Env, cmd.Stdin = d.env, strings.NewReader(input)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // else a ctrl-C would end it, too
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		text, _ := os.ReadFile(said.Name()) // what it said is only more than the error
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(text)))
	}
	return nil
}

// Variables are those with which a process that sees so many GPUs becomes a client.
func (d *Daemon) Variables(gpus int) map[string]string {
	all := map[string]string{PipeVariable: d.folder, logVariable: d.folder}
	if d.shown {
		ordinals := make([]string, gpus)
		for i := range ordinals {
			ordinals[i] = fmt.Sprint(i)
		}
		all[devices] = strings.Join(ordinals, ",")
	}
	return all
}

// Close ends the daemon, whose clients have ended, and removes its folder.
func (d *Daemon) Close() error {
	process := d.process()
	if process != nil {
		defer process.Close()
	}
	if err := d.control(context.Background(), "quit\n"); err != nil {
		return fmt.Errorf("ending the Multi-Process Service in %s: %w", d.folder, err)
	}
	if process == nil {
		return os.RemoveAll(d.folder)
	}
	// The program may return before the daemon has ended, which writes to the folder until then.
	err := process.SetReadDeadline(time.Now().Add(patience))
	if err = errors.Join(err, sys.AwaitEnd(process)); err != nil {
		return fmt.Errorf("waiting for the end of the Multi-Process Service in %s: %w", d.folder, err)
	}
	return os.RemoveAll(d.folder)
}

// process watches the daemon, or is nil if that cannot be or the daemon has ended.
func (d *Daemon) process() *os.File {
	text, err := os.ReadFile(filepath.Join(d.folder, program+".pid"))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	watch, err := sys.Pidfd(pid)
	if err != nil {
		return nil
	}
	return watch
}

func without(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	})
}
