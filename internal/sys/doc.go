// Package sys wraps system calls: anonymous shared files, mappings, futexes, process file
// descriptors and file descriptors sent over Unix sockets. No other package of symmem imports
// golang.org/x/sys.
//
// The receiver of a *File or a *Mapping owns it and must close it, once. Calls return wrapped errno
// values, for errors.Is(err, syscall.ENOMEM).
package sys
