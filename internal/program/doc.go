// Package program contains parts that are shared by the random programs of "symmem verify" and of
// package chaos.
package program
