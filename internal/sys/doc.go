// Package sys is the only door to the operating system's own calls: anonymous shared files,
// mappings, futexes, process file descriptors and file descriptors sent over Unix sockets.
// Nothing else in symmem imports golang.org/x/sys.
//
// Handles are owned: whoever gets a *File or a *Mapping closes it, once. Calls return wrapped
// errno values, so that errors.Is(err, syscall.ENOMEM) works for callers.
package sys
