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

// NCCL writes a log if the environment requests one. Its log variables are NCCL_DEBUG (how much to
// log), NCCL_DEBUG_SUBSYS (about which parts of NCCL) and NCCL_DEBUG_FILE. A Recorder sets the log
// variables that the user has not set, and then reads the log. Examples:
//
//   - The user has set no log variable. The Recorder requests a log in a temporary file.
//   - The user has set NCCL_DEBUG=INFO, and so has requested a log. The Recorder chooses a file for
//     it, which remains for the user.
//   - The user has set NCCL_DEBUG=WARN. NCCL then does not log the kernels that it uses. This is a
//     problem, about which the Recorder informs the user.

// The log variables.
const (
	levelVariable      = "NCCL_DEBUG"
	subsystemsVariable = "NCCL_DEBUG_SUBSYS"
	fileVariable       = "NCCL_DEBUG_FILE"
)

// defaultSubsystems is the value for NCCL_DEBUG_SUBSYS. TUNING logs the kernels, and WhyNoWindows
// reads the messages of INIT and NET. The other subsystems are for users.
const defaultSubsystems = "INIT,TUNING,REG,ALLOC,NET"

// settings combines the log variables that the user has set with those that Start sets.
type settings struct {
	variables      map[string]string // values to set, by variable
	filePattern    string            // the user's value of NCCL_DEBUG_FILE, or ""
	isLogRequested bool              // whether the user's NCCL_DEBUG requests a log
	problem        string            // why the user's variables prevent the log, or ""
}

// newSettings chooses values for the log variables that the user has not set. It leaves out
// NCCL_DEBUG_FILE, which chooseFile sets.
func newSettings(getenv func(string) string) settings {
	s := settings{variables: map[string]string{}, filePattern: getenv(fileVariable)}
	level := getenv(levelVariable)
	switch {
	case level == "":
		s.variables[levelVariable] = "INFO"
	case strings.EqualFold(level, "INFO") || strings.EqualFold(level, "TRACE"):
		s.isLogRequested = true
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

// isTuningEnabled reports whether a value of NCCL_DEBUG_SUBSYS selects TUNING. The value is a list
// of subsystems, such as "INIT,TUNING". With a leading ^, it selects all other subsystems.
func isTuningEnabled(subsystems string) bool {
	list, isInverted := strings.CutPrefix(subsystems, "^")
	isListed := false
	for name := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(name, "TUNING") || strings.EqualFold(name, "ALL") {
			isListed = true
		}
	}

	return isListed != isInverted
}

// Recorder makes NCCL write its log to a file, and reads the log.
type Recorder struct {
	file        string // path of the log
	isTemporary bool   // whether the log is only for the Recorder
	problem     string // see Problem
}

// Start makes NCCL log which kernels it uses. Call it before this process first calls NCCL, which
// caches the log variables. It does not change variables that the user has set. If they prevent the
// log, Problem returns a text about this.
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

	info, err := os.Stat(r.file) // an error is no problem: NCCL creates a missing file
	canReadBack := err != nil || info.Mode().IsRegular()
	if !canReadBack { // for example, the user has named a terminal
		r.problem = fmt.Sprintf("%s is %s, which cannot be read back: unset it", fileVariable,
			r.file)
	}

	return r, nil
}

// chooseFile sets r.file to the user's file. If there is none, it creates a temporary file or, if
// the user has requested a log, a folder for the file. It then sets NCCL_DEBUG_FILE in s.
func (r *Recorder) chooseFile(s *settings) error {
	switch {
	case s.filePattern != "":
		host, err := os.Hostname()
		if err != nil {
			host = "unknown" // as in NCCL
		}

		r.file = expandPattern(s.filePattern, host, os.Getpid())
		return nil
	case s.isLogRequested:
		folder, err := os.MkdirTemp("", "symmem-proof-")
		if err != nil {
			return err
		}

		r.file = filepath.Join(folder, fmt.Sprintf("nccl-%d.log", os.Getpid()))
	default:
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

// openTemporary is the flag __O_TMPFILE in asm-generic/fcntl.h. With it, the kernel creates a file
// without a name.
const openTemporary = 0x400000

// createUnnamed creates a file without a name in folder and returns its descriptor. The descriptor
// must stay open until the process exits, because NCCL may open /proc/PID/fd/FD much later.
func createUnnamed(folder string) (fd int, err error) {
	const flags = syscall.O_RDWR | syscall.O_CLOEXEC
	const onlyThisUser = 0o600
	fd, err = syscall.Open(folder, flags|openTemporary|syscall.O_DIRECTORY, onlyThisUser)
	if err == nil {
		return fd, nil
	}

	// Some file systems do not support this flag. Remove the name of an ordinary file instead.
	file, err := os.CreateTemp(folder, "symmem-proof-")
	if err != nil {
		return 0, err
	}

	const noMode = 0 // the file exists
	fd, openErr := syscall.Open(file.Name(), flags, noMode)
	removeErr := os.Remove(file.Name())
	closeErr := file.Close()
	return fd, errors.Join(openErr, removeErr, closeErr)
}

// Problem returns why the log cannot show which kernels ran and what to do about it, or "" if the
// log shows them.
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

// Close empties a temporary log. Other logs remain unchanged. NCCL may continue to write to the
// log.
func (r *Recorder) Close() error {
	if !r.isTemporary {
		return nil
	}

	if err := os.Truncate(r.file, 0); err != nil {
		return fmt.Errorf("emptying NCCL's log: %w", err)
	}

	return nil
}
