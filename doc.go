package symmem
