// The folder of cistern.h, for the build of an addon: node -p "require('cistern/include')"
module.exports = __dirname;
