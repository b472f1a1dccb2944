package proof

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"symmem/internal/dl"
)

// Environment variables that configure NCCL's log.
const (
	levelVariable      = "NCCL_DEBUG"        // how much to log
	subsystemsVariable = "NCCL_DEBUG_SUBSYS" // the parts of NCCL to log
	fileVariable       = "NCCL_DEBUG_FILE"   // path of the log, with placeholders such as %p
)

// defaultSubsystems contains TUNING for Read, INIT and NET for WhyNoWindows, and REG and ALLOC for
// users.
const defaultSubsystems = "INIT,TUNING,REG,ALLOC,NET"

// settings describes how to configure NCCL's log.
type settings struct {
	variables    map[string]string // variables to set
	filePattern  string            // the user's NCCL_DEBUG_FILE, or ""
	userWantsLog bool              // the user's NCCL_DEBUG is INFO or TRACE
	problem      string            // why the user's variables prevent the log, or ""
}

// newSettings returns all settings except NCCL_DEBUG_FILE, which chooseFile adds.
func newSettings(getenv func(string) string) settings {
	s := settings{variables: map[string]string{}, filePattern: getenv(fileVariable)}
	level := getenv(levelVariable)
	switch {
	case level == "":
		s.variables[levelVariable] = "INFO"
	case strings.EqualFold(level, "INFO") || strings.EqualFold(level, "TRACE"):
		s.userWantsLog = true
	default:
		s.problem = fmt.Sprintf("%s is %s, so NCCL does not log which kernels it uses: unset "+
			"it, or set it to INFO", levelVariable, level)
	}

	subsystems := getenv(subsystemsVariable)
	if subsystems == "" {
		s.variables[subsystemsVariable] = defaultSubsystems
		return s
	}

	if s.problem == "" && !isTuningEnabled(subsystems) {
		s.problem = fmt.Sprintf("%s is %s, so NCCL does not log which kernels it uses: unset "+
			"it, or add TUNING", subsystemsVariable, subsystems)
	}

	return s
}

// isTuningEnabled reports whether a value of NCCL_DEBUG_SUBSYS, such as "INIT,TUNING", selects
// TUNING. A leading ^ excludes the listed subsystems.
func isTuningEnabled(subsystems string) bool {
	list, excludesListed := strings.CutPrefix(subsystems, "^")
	isListed := false
	for name := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(name, "TUNING") || strings.EqualFold(name, "ALL") {
			isListed = true
		}
	}

	if excludesListed {
		return !isListed
	}

	return isListed
}

// Recorder makes NCCL write a log, and reads it.
type Recorder struct {
	file        string // path of the log
	isTemporary bool   // Close empties the file
	problem     string // see Problem
}

// Start makes NCCL log which kernels it uses. Call Start before the first call of NCCL, because
// NCCL caches the log variables. Start does not change variables that the user has set.
func Start() (*Recorder, error) {
	s := newSettings(os.Getenv)
	r := &Recorder{problem: s.problem}
	if err := r.chooseFile(&s); err != nil {
		return nil, fmt.Errorf("creating a file for NCCL's log: %w", err)
	}

	for name, value := range s.variables {
		if err := dl.Setenv(name, value); err != nil {
			setErr := fmt.Errorf("setting NCCL's variables for a log: %w", err)
			closeErr := r.Close()
			return nil, errors.Join(setErr, closeErr)
		}
	}

	info, err := os.Stat(r.file) // the file need not exist yet
	isSpecialFile := err == nil && !info.Mode().IsRegular()
	if isSpecialFile { // such as a terminal
		r.problem = fmt.Sprintf("%s is %s, which cannot be read back: unset it", fileVariable,
			r.file)
	}

	return r, nil
}

// chooseFile sets r.file, and adds NCCL_DEBUG_FILE to s unless the user has set it.
func (r *Recorder) chooseFile(s *settings) error {
	switch {
	case s.filePattern != "":
		host, err := os.Hostname()
		if err != nil {
			host = "unknown" // as in NCCL
		}

		r.file = expandPattern(s.filePattern, host, os.Getpid())
		return nil
	case s.userWantsLog: // Close keeps the file
		folder, err := os.MkdirTemp("", "symmem-proof-")
		if err != nil {
			return err
		}

		r.file = filepath.Join(folder, fmt.Sprintf("nccl-%d.log", os.Getpid()))
	default: // only symmem reads the log
		fd, err := createUnnamed(os.TempDir())
		if err != nil {
			return err
		}

		r.file = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
		r.isTemporary = true
	}

	s.variables[fileVariable] = escapePercent(r.file)
	return nil
}

// expandPattern expands a value of NCCL_DEBUG_FILE as ncclDebugInit in NCCL's src/debug.cc does: %h
// is the host name up to the first dot, %p is the process ID, and %% is a percent sign.
func expandPattern(pattern, host string, pid int) string {
	shortHost, _, _ := strings.Cut(host, ".")
	shortHost = strings.NewReplacer("%", "-", "/", "-").Replace(shortHost)
	expand := strings.NewReplacer("%%", "%", "%h", shortHost, "%p", fmt.Sprint(pid))
	return expand.Replace(pattern)
}

// escapePercent returns the value of NCCL_DEBUG_FILE that NCCL expands to the given path.
func escapePercent(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// openUnnamed is O_TMPFILE in Linux.
const openUnnamed = 0x400000 | syscall.O_DIRECTORY

// createUnnamed creates a file without a name in folder. Keep fd open: NCCL opens /proc/PID/fd/FD
// later.
func createUnnamed(folder string) (fd int, err error) {
	const flags = syscall.O_RDWR | syscall.O_CLOEXEC
	const onlyThisUser = 0o600
	fd, err = syscall.Open(folder, flags|openUnnamed, onlyThisUser)
	if err == nil {
		return fd, nil
	}

	// The file system may not support openUnnamed. Create a file and remove its name.
	file, err := os.CreateTemp(folder, "symmem-proof-")
	if err != nil {
		return 0, err
	}

	const unusedMode = 0 // Open does not create the file
	fd, openErr := syscall.Open(file.Name(), flags, unusedMode)
	removeErr := os.Remove(file.Name())
	closeErr := file.Close()
	return fd, errors.Join(openErr, removeErr, closeErr)
}

// Problem returns why the log does not show the kernels, with advice, or "" if it does.
func (r *Recorder) Problem() string { return r.problem }

// Read parses the log written so far. A missing file counts as an empty log.
func (r *Recorder) Read() (Log, error) {
	file, err := os.Open(r.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, fmt.Errorf("reading NCCL's log: %w", err)
	}

	defer file.Close()
	return Parse(file)
}

// Close empties a temporary log. The file stays open, because NCCL may still write to it.
func (r *Recorder) Close() error {
	if !r.isTemporary {
		return nil
	}

	if err := os.Truncate(r.file, 0); err != nil {
		return fmt.Errorf("emptying NCCL's log: %w", err)
	}

	return nil
}
