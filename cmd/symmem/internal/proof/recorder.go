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

// Recorder has NCCL write its log into a file. States: started, closed.
type Recorder struct {
	// file is the name by which the log is opened. Own reports whether nobody but this process has
	// asked for it.
	file    string
	own     bool
	trouble string
}

// Start makes NCCL log what it chooses, by the variables of the environment. It is called before
// NCCL's first call in this process, since NCCL remembers what it has read.
//
// Variables that are set already stay as they are. If they make NCCL write no such log, Trouble
// says so. Where nothing names a file, it is one that lies in no folder, so that nothing of it is
// left however the process ends; unless NCCL_DEBUG was set: then it is the log that the user has
// asked for, in a folder of its own, and stays.
func Start() (*Recorder, error) {
	p := plan(os.Getenv)
	r := &Recorder{trouble: p.trouble}
	if err := r.place(&p); err != nil {
		return nil, fmt.Errorf("making a file for NCCL's log: %w", err)
	}
	for name, value := range p.set {
		if err := dl.Setenv(name, value); err != nil {
			return nil, errors.Join(fmt.Errorf("asking NCCL for a log: %w", err), r.Close())
		}
	}
	if info, err := os.Stat(r.file); err == nil && !info.Mode().IsRegular() {
		r.trouble = fmt.Sprintf("%s is %s, which cannot be read back: leave it out", fileVariable,
			r.file)
	}
	return r, nil
}

// place finds the log's file, and makes it where nothing names one.
func (r *Recorder) place(p *intent) (err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	switch {
	case p.pattern != "":
		r.file = expand(p.pattern, host, os.Getpid())
		return nil
	case p.kept:
		folder, err := os.MkdirTemp("", "symmem-proof-")
		if err != nil {
			return err
		}
		r.file = filepath.Join(folder, fmt.Sprintf("nccl-%d.log", os.Getpid()))
	default:
		fd, err := unnamed(os.TempDir())
		if err != nil {
			return err
		}
		r.file, r.own = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), true
	}
	p.set[fileVariable] = escape(r.file)
	return nil
}

// tmpfile is __O_TMPFILE of asm-generic/fcntl.h.
const tmpfile = 0x400000

// unnamed makes a file on the file system of a folder that lies in no folder. Where the file system
// cannot, it is one whose name is removed at once.
//
// The descriptor stays open until the process ends: NCCL may open the log at any time, and empties
// what it opens, which must not be another file that has got the same number since.
func unnamed(folder string) (fd int, err error) {
	const flags = syscall.O_RDWR | syscall.O_CLOEXEC
	fd, err = syscall.Open(folder, flags|tmpfile|syscall.O_DIRECTORY, 0o600)
	if err == nil {
		return fd, nil
	}
	file, err := os.CreateTemp(folder, "symmem-proof-")
	if err != nil {
		return 0, err
	}
	fd, err = syscall.Open(file.Name(), flags, 0)
	return fd, errors.Join(err, os.Remove(file.Name()), file.Close())
}

// Trouble says why the log cannot show which kernels ran, and what to do about it; it is empty if
// the log can.
func (r *Recorder) Trouble() string { return r.trouble }

// Read parses what NCCL has said so far. A file that is not there is an empty log.
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

// Close empties the log, unless the user has asked for it. NCCL may go on writing into what nobody
// reads any more.
func (r *Recorder) Close() error {
	if !r.own {
		return nil
	}
	if err := os.Truncate(r.file, 0); err != nil {
		return fmt.Errorf("emptying NCCL's log: %w", err)
	}
	return nil
}

// The variables that say what NCCL logs, and where.
const (
	levelVariable = "NCCL_DEBUG"
	partsVariable = "NCCL_DEBUG_SUBSYS"
	fileVariable  = "NCCL_DEBUG_FILE"
)

// parts are what is logged if nothing else is asked for: what proves, and what explains.
const parts = "INIT,TUNING,REG,ALLOC"

// intent is what to change in the environment.
type intent struct {
	set map[string]string
	// pattern is the file's name as the user has given it, in NCCL_DEBUG_FILE; kept reports whether he
	// has asked NCCL for a log.
	pattern string
	kept    bool
	trouble string
}

// plan decides what to set, given what is set. The file is not among it where the user names none.
func plan(getenv func(string) string) intent {
	p := intent{set: map[string]string{}, pattern: getenv(fileVariable)}
	level, subsystems := getenv(levelVariable), getenv(partsVariable)
	switch {
	case level == "":
		p.set[levelVariable] = "INFO"
	case !strings.EqualFold(level, "INFO") && !strings.EqualFold(level, "TRACE"):
		p.trouble = fmt.Sprintf("%s is %s, so NCCL does not say which kernels it takes: leave it "+
			"out, or make it INFO", levelVariable, level)
	default:
		p.kept = true
	}
	switch {
	case subsystems == "":
		p.set[partsVariable] = parts
	case !logs(subsystems) && p.trouble == "":
		p.trouble = fmt.Sprintf("%s is %s, so NCCL does not say which kernels it takes: leave it "+
			"out, or add TUNING", partsVariable, subsystems)
	}
	return p
}

// logs reports whether a list of subsystems, or of those to leave out after a ^, has TUNING in.
func logs(subsystems string) bool {
	list, inverted := strings.CutPrefix(subsystems, "^")
	for name := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(name, "TUNING") || strings.EqualFold(name, "ALL") {
			return !inverted
		}
	}
	return inverted
}

// escape keeps a file's name as it is when NCCL expands it.
func escape(name string) string { return strings.ReplaceAll(name, "%", "%%") }

// expand fills in a file's name as NCCL does (ncclDebugInit in src/debug.cc): %h is the host's name
// up to the first dot, with dashes for what cannot be in a file's name, %p the process, %% a
// percent sign, and everything else itself.
func expand(pattern, host string, pid int) string {
	host, _, _ = strings.Cut(host, ".")
	host = strings.NewReplacer("%", "-", "/", "-").Replace(host)
	return strings.NewReplacer("%%", "%", "%h", host, "%p", fmt.Sprint(pid)).Replace(pattern)
}
