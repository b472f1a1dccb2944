// Package sys wraps system calls: anonymous shared files, mappings, futexes, process file
// descriptors and file descriptors sent over Unix sockets. No other package of symmem imports
// golang.org/x/sys.
//
// Handles are owned: the receiver of a *File or a *Mapping closes it, once. Calls return wrapped
// errno values. Callers can use errors.Is(err, syscall.ENOMEM).
package sys
