// Package mps runs NVIDIA's Multi-Process Service (MPS), which lets the kernels of several client
// processes run concurrently on one GPU. An exception in one client affects all clients.
//
// A control program starts and stops a daemon, for example:
//
//	CUDA_MPS_PIPE_DIRECTORY=/tmp/x nvidia-cuda-mps-control -d
//	echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/x nvidia-cuda-mps-control
//
// Processes with this variable become clients of the daemon. If the daemon starts with
// CUDA_VISIBLE_DEVICES=2,3, its clients see only these two GPUs, as 0 and 1.
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

const (
	// PipeVariable is the environment variable for the folder in which a daemon listens.
	PipeVariable    = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable     = "CUDA_MPS_LOG_DIRECTORY"
	devicesVariable = "CUDA_VISIBLE_DEVICES" // list of GPUs
)

// controlProgram is part of NVIDIA's driver.
const controlProgram = "nvidia-cuda-mps-control"

// controlTimeout limits the start and the stop of a daemon, which usually take under a second.
const controlTimeout = 20 * time.Second

// IsRunning reports whether a daemon was started in the folder of PipeVariable, or in the default
// folder. The daemon may have been killed since.
func IsRunning(getenv func(string) string) bool {
	const defaultFolder = "/tmp/nvidia-mps"
	folder := cmp.Or(getenv(PipeVariable), defaultFolder)
	_, err := os.Stat(filepath.Join(folder, "control"))
	return err == nil
}

// Find returns the path of the control program, or an error if it is not installed.
func Find() (string, error) {
	path, err := exec.LookPath(controlProgram)
	if err != nil {
		return "", fmt.Errorf("finding NVIDIA's Multi-Process Service: %w", err)
	}

	return path, nil
}

// Daemon is a running MPS daemon. It is not safe for concurrent use.
type Daemon struct {
	controlPath string
	controlEnv  []string // environment of the control program, inherited by the daemon
	folder      string   // value of PipeVariable and logVariable
	hasDevices  bool     // controlEnv has devicesVariable
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

	controlEnv := removeVariables(env, PipeVariable, logVariable)
	controlEnv = append(controlEnv, PipeVariable+"="+folder, logVariable+"="+folder)
	d := &Daemon{
		controlPath: path,
		controlEnv:  controlEnv,
		folder:      folder,
		hasDevices:  slices.ContainsFunc(env, setsDevices),
	}
	const noInput = ""
	err = d.runControl(ctx, noInput, "-d")
	if err != nil {
		err = fmt.Errorf("starting the Multi-Process Service: %w", err)
		return nil, errors.Join(err, d.cleanUpFailedStart())
	}

	return d, nil
}

func setsDevices(entry string) bool { return strings.HasPrefix(entry, devicesVariable+"=") }

// cleanUpFailedStart removes the folder, and stops the daemon if it runs despite the failure.
func (d *Daemon) cleanUpFailedStart() error {
	pidfd := d.openPidfd()
	if pidfd == nil {
		return os.RemoveAll(d.folder)
	}

	return d.stop(pidfd)
}

// runControl runs the control program for up to controlTimeout, and adds its output to errors.
//
// The output goes to a file, because a new daemon inherits it. With a pipe, cmd.Run would wait
// until the daemon closes it.
func (d *Daemon) runControl(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	output, err := os.CreateTemp(d.folder, "output-")
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, d.controlPath, args...)
	cmd.Env = d.controlEnv
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout = output
	cmd.Stderr = output
	cmd.WaitDelay = time.Second                           // The program may not read all input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not kill the daemon.
	err = cmd.Run()
	hasSucceeded := err == nil || errors.Is(err, exec.ErrWaitDelay)
	if hasSucceeded {
		return nil
	}

	text, _ := os.ReadFile(output.Name())
	return fmt.Errorf("%s: %w: %s", controlProgram, err, strings.TrimSpace(string(text)))
}

// Variables returns the environment variables of a client. If the environment of Start had
// CUDA_VISIBLE_DEVICES, the client sees the first gpuCount of these GPUs.
func (d *Daemon) Variables(gpuCount int) map[string]string {
	variables := map[string]string{PipeVariable: d.folder, logVariable: d.folder}
	if d.hasDevices {
		numbers := make([]string, gpuCount)
		for i := range numbers {
			numbers[i] = strconv.Itoa(i)
		}

		variables[devicesVariable] = strings.Join(numbers, ",")
	}

	return variables
}

// Close stops the daemon and removes its folder. Call it after all clients have exited.
func (d *Daemon) Close() error { return d.stop(d.openPidfd()) }

// stop stops the daemon, waits until its process ends, and removes its folder. It closes pidfd. If
// pidfd is nil, it does not wait.
func (d *Daemon) stop(pidfd *os.File) error {
	if pidfd != nil {
		defer pidfd.Close()
	}

	err := d.runControl(context.Background(), "quit\n")
	if err != nil {
		return fmt.Errorf("stopping the Multi-Process Service in %s: %w", d.folder, err)
	}

	if pidfd == nil {
		return os.RemoveAll(d.folder)
	}

	// The control program may exit while the daemon is still running and writing to the folder.
	deadlineErr := pidfd.SetReadDeadline(time.Now().Add(controlTimeout))
	waitErr := sys.AwaitEnd(pidfd)
	err = errors.Join(deadlineErr, waitErr)
	if err != nil {
		return fmt.Errorf("waiting for the Multi-Process Service in %s to stop: %w", d.folder, err)
	}

	return os.RemoveAll(d.folder)
}

// openPidfd returns a pidfd of the daemon, or nil if it does not find the process.
func (d *Daemon) openPidfd() *os.File {
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

func removeVariables(env []string, names ...string) []string {
	isRemoved := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	}
	return slices.DeleteFunc(slices.Clone(env), isRemoved)
}
