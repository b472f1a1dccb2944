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

// A control program starts and stops a daemon of NVIDIA's Multi-Process Service (MPS), which lets
// several client processes share a GPU:
//
//	CUDA_MPS_PIPE_DIRECTORY=/tmp/x nvidia-cuda-mps-control -d
//	echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/x nvidia-cuda-mps-control
//
// Clients find the daemon by this folder. If it starts with CUDA_VISIBLE_DEVICES=2,3, they see only
// these two GPUs, as 0 and 1.

const (
	// PipeVariable names the folder in which a daemon listens.
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable  = "CUDA_MPS_LOG_DIRECTORY"
	// devicesVariable lists the GPUs for a daemon or a client.
	devicesVariable = "CUDA_VISIBLE_DEVICES"
)

// controlProgram is part of NVIDIA's driver.
const controlProgram = "nvidia-cuda-mps-control"

// controlTimeout limits the start and the end of a daemon, which usually take under a second.
const controlTimeout = 20 * time.Second

// IsRunning reports whether the daemon that this process would use was started. It looks for a
// file, which remains if the daemon is killed.
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
	folder      string   // of PipeVariable and logVariable
	hasDevices  bool     // controlEnv sets devicesVariable
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
		hasDevices:  slices.ContainsFunc(env, isDevices),
	}
	const noInput = ""
	err = d.runControl(ctx, noInput, "-d")
	if err != nil {
		err = fmt.Errorf("starting the Multi-Process Service: %w", err)
		return nil, errors.Join(err, d.cleanUpFailedStart())
	}

	return d, nil
}

func isDevices(entry string) bool { return strings.HasPrefix(entry, devicesVariable+"=") }

// cleanUpFailedStart removes the folder, after stopping the daemon if it runs despite the failure.
func (d *Daemon) cleanUpFailedStart() error {
	process := d.openProcess()
	if process == nil {
		return os.RemoveAll(d.folder)
	}

	_ = process.Close()
	return d.Close()
}

// runControl runs the control program for up to controlTimeout, and adds its output to errors.
//
// The output goes to a file, because a new daemon inherits it. A pipe would block runControl until
// the daemon closes it.
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
	cmd.WaitDelay = time.Second                           // limits copying the input after the exit
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not kill the daemon.
	err = cmd.Run()
	// The program may succeed without reading all of its input.
	hasSucceeded := err == nil || errors.Is(err, exec.ErrWaitDelay)
	if hasSucceeded {
		return nil
	}

	text, _ := os.ReadFile(output.Name())
	return fmt.Errorf("%s: %w: %s", controlProgram, err, strings.TrimSpace(string(text)))
}

// Variables returns the environment variables of a client. If Start got a list of GPUs, the client
// sees the first gpuCount of them.
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
func (d *Daemon) Close() error {
	process := d.openProcess()
	if process != nil {
		defer process.Close()
	}

	err := d.runControl(context.Background(), "quit\n")
	if err != nil {
		return fmt.Errorf("stopping the Multi-Process Service in %s: %w", d.folder, err)
	}

	if process == nil {
		return os.RemoveAll(d.folder)
	}

	// The control program may exit while the daemon is still running and writing to the folder.
	deadlineErr := process.SetReadDeadline(time.Now().Add(controlTimeout))
	waitErr := sys.AwaitEnd(process)
	err = errors.Join(deadlineErr, waitErr)
	if err != nil {
		return fmt.Errorf("waiting for the Multi-Process Service in %s to stop: %w", d.folder, err)
	}

	return os.RemoveAll(d.folder)
}

// openProcess returns a pidfd of the daemon, or nil if it has exited or not written its process ID.
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

func removeVariables(env []string, names ...string) []string {
	isRemoved := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	}
	return slices.DeleteFunc(slices.Clone(env), isRemoved)
}
