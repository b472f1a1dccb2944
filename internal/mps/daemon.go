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

// PipeVariable names the folder in which a daemon listens, and logVariable the folder of its logs.
// If the first is empty or names a folder without a daemon, CUDA does not use the service.
const (
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable  = "CUDA_MPS_LOG_DIRECTORY"
)

// devices is the variable that selects the GPUs visible to CUDA. A daemon started with it offers
// only these GPUs to its clients, numbered from 0.
const devices = "CUDA_VISIBLE_DEVICES"

// program is NVIDIA's control program, which is part of the driver.
const program = "nvidia-cuda-mps-control"

// patience bounds the start and the end of a daemon.
const patience = 20 * time.Second

// Running reports whether processes with this environment may be clients of a daemon. A daemon has
// listened there, but may have been killed since.
func Running(getenv func(string) string) bool {
	_, err := os.Stat(filepath.Join(cmp.Or(getenv(PipeVariable), "/tmp/nvidia-mps"), "control"))
	return err == nil
}

// Find returns the path of the control program, or an error if it is not installed.
func Find() (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("finding NVIDIA's Multi-Process Service: %w", err)
	}
	return path, nil
}

// Daemon is a running daemon, owned by the caller of Start. Its methods are not safe for concurrent
// use.
type Daemon struct {
	path   string
	folder string
	env    []string
	shown  bool
}

// Start starts a daemon in a new folder, for the GPUs visible in the environment. ctx bounds only
// the start.
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
		return nil, errors.Join(err, d.Close()) // it is running despite the error
	}
	return d, nil
}

// control runs the program once. The daemon inherits its outputs and keeps them open, so they are
// files: reading a pipe would not end.
func (d *Daemon) control(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	output, err := os.CreateTemp(d.folder, "output-")
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, d.path, args...)
	cmd.Env, cmd.Stdin = d.env, strings.NewReader(input)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = output, output, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // else Ctrl-C would end it, too
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		text, _ := os.ReadFile(output.Name()) // without it the error is only less detailed
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(text)))
	}
	return nil
}

// Variables returns the variables that make a process which sees the given number of GPUs a client.
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

// Close stops the daemon and removes its folder. All clients must have ended.
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

// process returns a pidfd of the daemon, or nil if it has ended or cannot be watched.
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
