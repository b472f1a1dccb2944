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

// Environment variables of NVIDIA's Multi-Process Service (MPS).
const (
	// PipeVariable names the folder in which a daemon listens.
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable  = "CUDA_MPS_LOG_DIRECTORY" // the folder of a daemon's logs
	// devicesVariable lists GPUs. A daemon offers only those to its clients, and numbers them from
	// 0.
	devicesVariable = "CUDA_VISIBLE_DEVICES"
)

// controlProgram is part of NVIDIA's driver. It starts and stops daemons.
const controlProgram = "nvidia-cuda-mps-control"

// controlTimeout limits the start or end of a daemon.
const controlTimeout = 20 * time.Second

// IsRunning reports whether CUDA would try to connect to a daemon in this environment, because the
// daemon's folder exists. It does not detect that the daemon was killed.
func IsRunning(getenv func(string) string) bool {
	_, err := os.Stat(filepath.Join(cmp.Or(getenv(PipeVariable), "/tmp/nvidia-mps"), "control"))
	return err == nil
}

// Find returns the path of MPS's control program, or an error if it is not installed.
func Find() (string, error) {
	path, err := exec.LookPath(controlProgram)
	if err != nil {
		return "", fmt.Errorf("finding NVIDIA's Multi-Process Service: %w", err)
	}
	return path, nil
}

// Daemon is a running MPS daemon. It is not safe for concurrent use.
type Daemon struct {
	controlPath string   // of the control program
	controlEnv  []string // environment of the control program and the daemon
	folder      string   // folder in which the daemon listens and writes its logs
	hasDevices  bool     // controlEnv contains devicesVariable
}

// Start starts a daemon for the GPUs that are visible in env. ctx limits only the start.
func Start(ctx context.Context, env []string) (*Daemon, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "symmem-mps-")
	if err != nil {
		return nil, fmt.Errorf("starting the Multi-Process Service: %w", err)
	}
	d := &Daemon{controlPath: path, folder: folder}
	d.hasDevices = slices.ContainsFunc(env, func(entry string) bool {
		return strings.HasPrefix(entry, devicesVariable+"=")
	})
	d.controlEnv = append(removeVariables(env, PipeVariable, logVariable),
		PipeVariable+"="+folder, logVariable+"="+folder)
	if err := d.runControl(ctx, "", "-d"); err != nil {
		err = fmt.Errorf("starting the Multi-Process Service: %w", err)
		if d.openProcess() == nil {
			return nil, errors.Join(err, os.RemoveAll(folder))
		}
		return nil, errors.Join(err, d.Close()) // the daemon is running despite the error
	}
	return d, nil
}

// runControl runs the control program, and waits up to controlTimeout for its exit. An error
// contains the program's output. The output goes to a file, because a daemon that the program
// starts inherits it, and would keep a pipe open.
func (d *Daemon) runControl(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	output, err := os.CreateTemp(d.folder, "output-")
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, d.controlPath, args...)
	cmd.Env, cmd.Stdin = d.controlEnv, strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not kill the daemon
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		text, _ := os.ReadFile(output.Name())
		return fmt.Errorf("%s: %w: %s", controlProgram, err, strings.TrimSpace(string(text)))
	}
	return nil
}

// Variables returns environment variables for a process that uses the daemon. If the daemon has a
// list of visible GPUs, the process can use the first gpuCount of them.
func (d *Daemon) Variables(gpuCount int) map[string]string {
	variables := map[string]string{PipeVariable: d.folder, logVariable: d.folder}
	if d.hasDevices {
		ordinals := make([]string, gpuCount)
		for i := range ordinals {
			ordinals[i] = fmt.Sprint(i)
		}
		variables[devicesVariable] = strings.Join(ordinals, ",")
	}
	return variables
}

// Close stops the daemon and removes its folder. All clients must have exited.
func (d *Daemon) Close() error {
	process := d.openProcess()
	if process != nil {
		defer process.Close()
	}
	if err := d.runControl(context.Background(), "quit\n"); err != nil {
		return fmt.Errorf("stopping the Multi-Process Service in %s: %w", d.folder, err)
	}
	if process == nil {
		return os.RemoveAll(d.folder)
	}
	// The control program may return while the daemon is still running and writing to the folder.
	err := process.SetReadDeadline(time.Now().Add(controlTimeout))
	if err = errors.Join(err, sys.AwaitEnd(process)); err != nil {
		return fmt.Errorf("waiting for the Multi-Process Service in %s to stop: %w", d.folder, err)
	}
	return os.RemoveAll(d.folder)
}

// openProcess returns a pidfd of the daemon, or nil if the daemon has exited.
func (d *Daemon) openProcess() *os.File {
	text, err := os.ReadFile(filepath.Join(d.folder, controlProgram+".pid"))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	pidfd, err := sys.Pidfd(pid)
	if err != nil {
		return nil
	}
	return pidfd
}

// removeVariables returns a copy of env without the given variables.
func removeVariables(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	})
}
