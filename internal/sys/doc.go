// Package sys wraps system calls for anonymous shared files, mappings, futexes, processes and
// sockets. No other package of symmem imports golang.org/x/sys.
//
// A caller that gets an *os.File or a *Mapping owns it and must close it exactly once. Errors wrap
// errno values, so that errors.Is(err, syscall.ENOMEM) works.
package sys
